//! Texts through pipes: without an end, silent, and as the service ends.

use std::io::Write;

use nix::fcntl::SealFlag;
use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use zbus::Variant;

use super::{embed, memfd};
use crate::harness::client::{Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, within};

tests! {
    a_pipe_that_never_ends_is_ended: [Bus],
    a_silent_pipe_is_ended: [Bus],
    who_waits_for_a_pipe_is_told_of_the_end: [Bus],
}

/// Pipes whose writer never stops: one line, and one line after the other.
async fn a_pipe_that_never_ends_is_ended() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let deadline = || Options::from([("deadline_ms", Variant::from(300_u32))]);
    for (piece, options, expected) in [
        ([b'x'; 4096].as_slice(), Options::new(), ErrorName::TooLarge),
        (b"a line\n".repeat(64).as_slice(), deadline(), ErrorName::DeadlineExceeded),
    ] {
        let (source, mut writer) = std::io::pipe()?;
        let piece = piece.to_vec();
        // It ends when nobody can read any more.
        let written = std::thread::spawn(move || {
            let mut written = 0;
            while writer.write_all(&piece).is_ok() {
                written += piece.len();
            }
            written
        });
        let answer = within("an endless pipe", embed(daemon.client(), &source, options)).await?;
        refused(answer, expected)?;
        drop(source);
        let written =
            within("the writer", tokio::task::spawn_blocking(move || written.join())).await??;
        assert!(written.map_err(|_| "the writer failed")? > 0);
    }
    // One that says nothing has no longer either, however long its silence may be.
    let (source, _writer) = std::io::pipe()?;
    let answer = within("a silent pipe", embed(daemon.client(), &source, deadline())).await?;
    let message = refused(answer, ErrorName::DeadlineExceeded)?;
    assert!(!message.contains("source_silence_s"), "{message}");
    daemon.client().embedder.embed("still there").await?;
    daemon.stop().await
}

/// Its writer is there and says nothing: neither the call nor the job waits for ever.
async fn a_silent_pipe_is_ended() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.setting("source_silence_s", "1").alone().await?;
    let client = daemon.client();
    // One that has never said anything, and one that stops in the middle of a line.
    for said in [&b""[..], b"one\ntw"] {
        let (source, mut writer) = std::io::pipe()?;
        writer.write_all(said)?;
        let answer = within("a silent pipe", embed(client, &source, Options::new())).await?;
        let message = refused(answer, ErrorName::DeadlineExceeded)?;
        assert!(message.contains("for 1 s (source_silence_s)"), "{message}");
        let job = client.start_job(&source, Options::new()).await?;
        eventually("the end of its job", async || Ok(job.state().await? != "running")).await?;
        assert_eq!(job.error_name().await?, ErrorName::DeadlineExceeded.as_str());
        drop(writer);
    }
    // Nothing of them is left: all four places of the user are free. What a machine that stands still does not read
    // for a second is no silent source.
    let setup = setup.setting("source_silence_s", "60");
    setup.write_config()?;
    client.manager.reload().await?;
    let source = memfd(b"one", SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE)?;
    let calls = (0..4).map(|_| embed(client, &source, Options::new()));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer?.1, 1);
    }
    daemon.stop().await
}

/// Pipes that never end, from a client that leaves: its places are free again.
async fn who_waits_for_a_pipe_is_told_of_the_end() -> Outcome {
    let (_bus, _setup, mut daemon) = Setup::sim()?.alone().await?;
    let (source, mut text) = std::io::pipe()?;
    text.write_all(b"one\n")?;
    let answer = embed(daemon.client(), &source, Options::new());
    tokio::select! {
        answer = answer => {
            drop(refused(answer, ErrorName::ShuttingDown)?);
        }
        never = async {
            daemon.client().counted("texts", 1).await?;
            daemon.process.signal(Signal::SIGTERM)?;
            std::future::pending::<Outcome>().await
        } => never?,
    }
    assert!(daemon.process.ended().await?.success());
    Ok(())
}
