//! A wall clock that somebody sets while the service runs.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::signal::Signal;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options};
use crate::harness::daemon::Setup;
use crate::harness::needs::faketime;
use crate::harness::registry::tests;
use crate::harness::{Outcome, within};

tests! { a_clock_that_jumps_ends_nothing: [Bus, Faketime] }

async fn a_clock_that_jumps_ends_nothing() -> Outcome {
    const YEAR_S: u64 = 365 * 24 * 3600;
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let offset = setup.path("offset");
    let library = faketime().ok_or("libfaketime is gone")?;
    let setup = setup.env("LD_PRELOAD", &library.display().to_string());
    let setup = setup.env("FAKETIME_TIMESTAMP_FILE", &offset.display().to_string());
    // Read at each look at the clock, and only the clock that people set.
    let setup = setup.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    fs::write(&offset, "+365d")?;
    fs::write(setup.state_file(), "damaged")?;
    let daemon = setup.ready(&bus).await?;
    let client = Client::on(&bus).await?;

    // The daemon does live in another year: it says so in the name of what it moves aside.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let aside = setup.path("state").read_dir()?.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("state.json.corrupt-")?.parse::<u64>().ok()
    });
    let seen = aside.ok_or("nothing was moved aside")?;
    assert!(seen.abs_diff(now + YEAR_S) < 24 * 3600, "{seen} is not a year after {now}");

    daemon.signal_workers(Signal::SIGSTOP).await?;
    let waiting = tokio::spawn(async move {
        let options = Options::from([("deadline_ms", 600_000_u32.into())]);
        client.packed(&["waits through both jumps"], options).await.map(|_| ())
    });
    for jump in ["+730d", "-365d", "+0d"] {
        fs::write(&offset, jump)?;
        daemon.client().counted("in_flight_calls", 1).await?;
        daemon.client().embedder.count_tokens(&["a look at the clock"]).await?;
        assert!(!waiting.is_finished(), "a deadline of ten minutes was over at {jump}");
        assert_eq!(daemon.client().embedder.state().await?, "ready", "{jump}");
    }
    daemon.signal_workers(Signal::SIGCONT).await?;
    within("the call that waited", waiting).await???;
    fs::write(&offset, "-365d")?;
    daemon.client().manager.set_vector_level("medium").await?;
    daemon.client().embedder.embed("in another year").await?;
    daemon.stop().await
}
