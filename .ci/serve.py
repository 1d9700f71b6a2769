"""Serve the built book on this machine: `make serve`, or `make serve PORT=8001`."""

import functools
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HTML = Path(__file__).parent.parent / "_build/html"

if not sys.argv[1].isdecimal() or (port := int(sys.argv[1])) > 65535:
    sys.exit(f"PORT is a number up to 65535, found {sys.argv[1]}: make serve PORT=8000")
if not (HTML / "book/index.html").exists():
    sys.exit("There is no book yet: make book")
handler = functools.partial(SimpleHTTPRequestHandler, directory=HTML)
try:
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
except OSError as error:
    sys.exit(f"Port {port}: {error.strerror}. Choose another: make serve PORT={port + 1}")
at = f"http://127.0.0.1:{server.server_port}"
print(f"The book: {at}/book/index.html  (Ctrl-C ends it)", flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(130)
