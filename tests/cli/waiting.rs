//! Commands that wait: `op-dbus status --wait` for a service that is not there, or does not embed, the doctor for a
//! driver.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;

use futures_util::TryStreamExt;
use nix::sys::signal::{Signal, kill};
use op_dbus_api::BUS_NAME;
use zbus::MessageStream;

use super::away::starting;
use crate::doctor::command;
use crate::harness::client::Client;
use crate::harness::command::{cli, path_with};
use crate::harness::daemon::Setup;
use crate::harness::process::Process;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};

tests! {
    status_waits_for_a_service_that_ends_to_be_back: [Bus],
    status_asks_for_a_start_once: [Bus],
    status_asks_for_a_start_of_what_has_ended: [Bus],
    status_waits_for_no_model_where_there_is_to_be_none: [Bus],
    a_doctor_that_is_ended_waits_for_no_driver: [],
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
    let refused = cli(&bus, &["status", "--wait=5"]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stdout);
    let said = "op-dbus: the service is still draining after 5 s\n";
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

/// A service that is started for each look at it would use up what systemd allows a unit.
async fn status_asks_for_a_start_once() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (bus, started) = starting(folder.path()).await?;
    let refused = cli(&bus, &["status", "--wait=5"]).await?;
    assert_eq!(refused.code, Some(3), "{}", refused.stdout);
    // Why it came to nothing is told all the same.
    assert!(refused.stderr.contains("exited with status 1"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(started)?, "\n");
    Ok(())
}

/// Who was asked while it was there was not asked for a start.
async fn status_asks_for_a_start_of_what_has_ended() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (bus, started) = starting(folder.path()).await?;
    let service = bus.connect().await?;
    service.request_name(BUS_NAME).await?;
    let mut calls = MessageStream::from(&service);
    let ends = async move {
        while let Some(call) = calls.try_next().await? {
            if call.header().member().is_some_and(|member| member == "GetAll") {
                break;
            }
        }
        drop(calls);
        service.close().await
    };
    let (refused, ended) = tokio::join!(cli(&bus, &["status", "--wait=5"]), ends);
    ended?;
    let refused = refused?;
    assert!(refused.stderr.contains("exited with status 1"), "{}", refused.stderr);
    assert_eq!(fs::read_to_string(started)?, "\n");
    Ok(())
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

/// NVIDIA's own program never ends where the driver hangs.
async fn a_doctor_that_is_ended_waits_for_no_driver() -> Outcome {
    let setup = Setup::sim()?;
    let asked = setup.path("asked");
    let script = format!(": >{}\nexec tail -f /dev/null", asked.display());
    let mut command = command(&setup, "unix:path=/nonexistent/bus", &["cuda", "--quick"])?;
    command.env("PATH", path_with(&setup.path(""), "nvidia-smi", &script)?);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut doctor = Process::start("doctor", command, &setup.path("doctor.log"))?;
    eventually("the question", async || Ok(asked.exists())).await?;
    doctor.signal(Signal::SIGTERM)?;
    let ended = doctor.ended().await?.signal();
    assert_eq!(ended, Some(Signal::SIGTERM as i32), "{}", doctor.stderr());
    Ok(())
}
