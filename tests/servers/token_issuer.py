"""An OAuth2 issuer on this machine: client credentials (RFC 6749, 4.4) for JWTs signed with RS256 (RFC 7518, 3.3)."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

DISCOVERY = "/.well-known/openid-configuration"
TOKEN = "/token"


class TokenIssuer:
    """Gives out tokens of ``life_s`` seconds to clients (secrets by client id, which is the role).

    ``issued`` are all its tokens, ``asked_by`` counts the requests for them by the asking program, ``refused`` those
    with wrong credentials.
    """

    def __init__(self, clients: Mapping[str, str], life_s: int) -> None:
        self.clients = clients
        self.life_s = life_s
        self.issued: list[str] = []
        self.asked_by: Counter[str] = Counter()
        self.refused = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == DISCOVERY
                self._answer(200 if found else 404, {"token_endpoint": issuer.url + TOKEN} if found else {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                issuer.asked_by[self.headers.get("User-Agent", "")] += 1
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._answer(*(issuer.grant(form) if self.path == TOKEN else (404, {})))

            def _answer(self, status: int, value: Mapping[str, object]) -> None:
                content = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def write_public_key(self, path: Path) -> Path:
        """Write the key by which brokers check the tokens, as DER."""
        path.write_bytes(self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
        return path

    def grant(self, form: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        """Answer a request for a token."""
        role = form.get("client_id", "")
        if form.get("grant_type") != "client_credentials":
            return 400, {"error": "unsupported_grant_type"}
        if role not in self.clients or form.get("client_secret") != self.clients[role]:
            self.refused += 1
            # Some issuers repeat what they were sent.
            return 401, {"error": "invalid_client", "error_description": str(form)}
        now = int(time.time())
        claims = {"iss": self.url, "sub": role, "aud": form.get("audience", ""), "iat": now, "exp": now + self.life_s}
        token = self._sign({**claims, "jti": str(len(self.issued))})
        self.issued.append(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life_s}

    def __enter__(self) -> TokenIssuer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _sign(self, claims: Mapping[str, object]) -> str:
        signed = ".".join(_encode(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
        return f"{signed}.{_encode(self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
