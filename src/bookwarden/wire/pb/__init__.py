"""Generated from proto/ by protoc; do not edit. From the top of the checkout:

python -m grpc_tools.protoc -Ibookwarden/wire/pb=proto --python_out=src --pyi_out=src \
    bookwarden/wire/pb/{bookie_protocol,compression,ledger_metadata,managed_ledger,schema_locator}.proto
"""
