//! `op-dbus status --wait` where the service is there and does not embed.

use nix::sys::signal::{Signal, kill};

use crate::harness::Outcome;
use crate::harness::client::Client;
use crate::harness::command::cli;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    status_waits_for_a_service_that_ends_to_be_back: [Bus],
    status_waits_for_no_model_where_there_is_to_be_none: [Bus],
}

async fn status_waits_for_a_service_that_ends_to_be_back() -> Outcome {
    let (bus, setup, mut daemon) = Setup::sim()?.alone().await?;
    let client = Client::on(&bus).await?;
    daemon.signal_workers(Signal::SIGSTOP).await?;
    let workers = daemon.workers().await?;
    let in_flight = client.embed_meanwhile("in flight");
    client.counted("in_flight_calls", 1).await?;
    daemon.process.signal(Signal::SIGTERM)?;
    daemon.state(|state| state == "draining").await?;
    let refused = cli(&bus, &["status", "--wait=1"]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    let said = "op-dbus: the service is still draining after 1 s\n";
    assert_eq!(refused.stderr, said);
    let again = async {
        for worker in workers {
            kill(worker, Signal::SIGCONT)?;
        }
        in_flight.await??;
        daemon.process.ended().await?;
        setup.ready(&bus).await
    };
    let (waited, daemon) = tokio::join!(cli(&bus, &["status", "--wait"]), again);
    let waited = waited?.success()?;
    assert!(waited.contains("ready"), "{waited}");
    daemon?.stop().await
}

async fn status_waits_for_no_model_where_there_is_to_be_none() -> Outcome {
    let setup = Setup::sim()?.setting("vector_level", "none");
    let (bus, _setup, daemon) = setup.alone_as("disabled").await?;
    let refused = cli(&bus, &["status", "--wait"]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    assert_eq!(
        refused.stderr,
        "op-dbus: Embedding is off (vector level none); choose another level with SetVectorLevel\n"
    );
    // Without a wait it is told like any other state.
    assert!(cli(&bus, &["status"]).await?.success()?.contains("disabled"));
    daemon.stop().await
}
