//! What the replies of one user's direct connections may hold together, and what waits for it.

use op_dbus_api::ErrorName;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::hostile::{call, open};
use super::line;
use crate::harness::client::{Options, refused};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! {
    who_never_reads_has_one_room_on_all_connections: [Bus],
    too_many_texts_wait_for_no_room: [Bus],
}

const TEXTS: usize = 490;
/// How many replies fit: their numbers, and what may tell of each that it was cut.
const FIT: u64 = (64 << 20) / (TEXTS * (8 + 384 * 8 + 4)) as u64;

/// With tokens enough for all that waits.
fn setup() -> Outcome<Setup> {
    let setup = Setup::sim()?.setting("quota_tokens", "1000000");
    Ok(setup.setting("queue_tokens_max", "2000000"))
}

/// Lines on which more is asked than there is room for, and nothing read.
async fn fill(daemon: &Daemon) -> Outcome<Vec<UnixStream>> {
    let client = daemon.client();
    let before = client.counter("calls").await?;
    let mut lines = Vec::new();
    for _ in 0..4 {
        let mut socket = open(client).await?;
        for _ in 0..60 {
            let call = call("EmbedBatch").build(&vec!["a"; TEXTS])?;
            socket.write_all(call.data()).await?;
        }
        lines.push(socket);
    }
    client.counted("calls", before + FIT).await?;
    Ok(lines)
}

/// Replies that are hundreds of times as long as their calls wait before they are made.
async fn who_never_reads_has_one_room_on_all_connections() -> Outcome {
    let (_bus, _setup, daemon) = setup()?.alone().await?;
    let client = daemon.client();
    let before = client.counter("calls").await?;
    let mut lines = fill(&daemon).await?;
    for _ in 0..100 {
        assert_eq!(client.counter("calls").await? - before, FIT);
    }
    // When it leaves whose calls came first, others go on.
    drop(lines.swap_remove(0));
    client.counted("calls", before + FIT + 1).await?;
    daemon.stop().await
}

/// Made of a message they take several times its bytes, which nobody counts.
async fn too_many_texts_wait_for_no_room() -> Outcome {
    let (_bus, _setup, daemon) = setup()?.alone().await?;
    let lines = fill(&daemon).await?;
    let many = vec!["x"; 100_000];
    let direct = line(daemon.client()).await?;
    let embedder = &direct.embedder;
    let told = |message: String| {
        assert!(message.contains(" in the call is 100000, the limit is 16384"), "{message}");
    };
    let counts = within("a refusal", embedder.count_tokens(&many)).await?;
    told(refused(counts, ErrorName::TooLarge)?);
    let tokens = within("a refusal", embedder.tokenize(&many, Options::new())).await?;
    told(refused(tokens, ErrorName::TooLarge)?);
    // The least that vectors can take.
    let bits = || Options::from([("encoding", "b1".into()), ("dimensions", 1_u32.into())]);
    let vectors = within("a refusal", embedder.embed_packed(&many, bits())).await?;
    told(refused(vectors, ErrorName::TooLarge)?);
    let lists = vec![[].as_slice(); many.len()];
    let vectors = within("a refusal", embedder.embed_tokens(&lists, bits())).await?;
    told(refused(vectors, ErrorName::TooLarge)?);
    for line in lines {
        let state = line.ready(Interest::READABLE).await?;
        assert!(!state.is_read_closed(), "they waited until an unread line was closed");
    }
    daemon.stop().await
}
