from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UsualMetadata(_message.Message):
    __slots__ = ("quorumSize", "ensembleSize", "length", "lastEntryId", "state", "segment", "digestType", "ackQuorumSize", "ctime", "customMetadata")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MISSING: _ClassVar[UsualMetadata.State]
        OPEN: _ClassVar[UsualMetadata.State]
        IN_RECOVERY: _ClassVar[UsualMetadata.State]
        CLOSED: _ClassVar[UsualMetadata.State]
    MISSING: UsualMetadata.State
    OPEN: UsualMetadata.State
    IN_RECOVERY: UsualMetadata.State
    CLOSED: UsualMetadata.State
    class DigestType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NO_DIGEST: _ClassVar[UsualMetadata.DigestType]
        CRC32: _ClassVar[UsualMetadata.DigestType]
        HMAC: _ClassVar[UsualMetadata.DigestType]
        CRC32C: _ClassVar[UsualMetadata.DigestType]
        DUMMY: _ClassVar[UsualMetadata.DigestType]
    NO_DIGEST: UsualMetadata.DigestType
    CRC32: UsualMetadata.DigestType
    HMAC: UsualMetadata.DigestType
    CRC32C: UsualMetadata.DigestType
    DUMMY: UsualMetadata.DigestType
    QUORUMSIZE_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLESIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    LASTENTRYID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    DIGESTTYPE_FIELD_NUMBER: _ClassVar[int]
    ACKQUORUMSIZE_FIELD_NUMBER: _ClassVar[int]
    CTIME_FIELD_NUMBER: _ClassVar[int]
    CUSTOMMETADATA_FIELD_NUMBER: _ClassVar[int]
    quorumSize: int
    ensembleSize: int
    length: int
    lastEntryId: int
    state: UsualMetadata.State
    segment: _containers.RepeatedScalarFieldContainer[bytes]
    digestType: UsualMetadata.DigestType
    ackQuorumSize: int
    ctime: int
    customMetadata: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, quorumSize: _Optional[int] = ..., ensembleSize: _Optional[int] = ..., length: _Optional[int] = ..., lastEntryId: _Optional[int] = ..., state: _Optional[_Union[UsualMetadata.State, str]] = ..., segment: _Optional[_Iterable[bytes]] = ..., digestType: _Optional[_Union[UsualMetadata.DigestType, str]] = ..., ackQuorumSize: _Optional[int] = ..., ctime: _Optional[int] = ..., customMetadata: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UsualSegment(_message.Message):
    __slots__ = ("ensembleMember", "firstEntryId")
    ENSEMBLEMEMBER_FIELD_NUMBER: _ClassVar[int]
    FIRSTENTRYID_FIELD_NUMBER: _ClassVar[int]
    ensembleMember: _containers.RepeatedScalarFieldContainer[str]
    firstEntryId: int
    def __init__(self, ensembleMember: _Optional[_Iterable[str]] = ..., firstEntryId: _Optional[int] = ...) -> None: ...
