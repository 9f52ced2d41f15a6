"""A server with a certificate, which hands on what it is sent to another one on this machine.

Started by the tests with the certificate, its key, and the port of the other one.
"""

import asyncio
import ssl
import sys


async def copy(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def main():
    certificate, key, port = sys.argv[1:]
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2", "http/1.1"])

    async def serve(reader, writer):
        there, here = await asyncio.open_connection("127.0.0.1", int(port))
        await asyncio.gather(copy(reader, here), copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    host, own = server.sockets[0].getsockname()
    print(f"answered at https://{host}:{own}", file=sys.stderr, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
