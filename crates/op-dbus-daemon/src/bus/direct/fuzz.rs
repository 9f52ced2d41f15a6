//! What a client says on a direct connection, which no bus has looked at.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use zbus::connection::Builder;
use zbus::{Guid, MessageStream};

use super::super::fuzz::RUNTIME;
use super::gate::UserRoom;
use super::socket::Socket;

/// Who the client is, whoever runs this.
const UID: u32 = 1000;

/// All that a client says, from its authentication on: nothing keeps its line from coming to an end.
pub(crate) fn direct(bytes: &[u8]) -> bool {
    RUNTIME.block_on(async {
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        let ours = ours.into_std().expect("a socket");
        let socket = Socket::new(ours, UserRoom::of(None)).expect("a runtime");
        let service = async {
            let understood = serve(&socket).await;
            socket.shut_down();
            understood
        };
        let client = async {
            // The service may end the line at any time.
            let _ = theirs.write_all(bytes).await;
            let _ = theirs.shutdown().await;
            let _ = theirs.read_to_end(&mut Vec::new()).await;
        };
        tokio::join!(service, client).0
    })
}

/// Answers all calls; whether there was one.
async fn serve(socket: &Socket) -> bool {
    let builder = Builder::socket(socket.clone()).server(Guid::generate()).p2p().user_id(UID);
    // A panic ends the line alone, as in `Line::connect`.
    let built = AssertUnwindSafe(builder.build()).catch_unwind().await;
    let Ok(Ok(connection)) = built else { return false };
    let (mut received, mut understood) = (MessageStream::from(&connection), false);
    while let Some(call) = received.next().await {
        // What ends the line comes last.
        let Ok(call) = call else { return understood };
        understood = true;
        // Without a reply it would keep its room from those behind it.
        connection.reply(&call.header(), &()).await.expect("a client that reads");
    }
    panic!("what reads messages has panicked");
}
