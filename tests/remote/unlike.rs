//! Endpoints of unlike speed, each with a worker: devices of one provider, told apart by what batches cost there.

use std::collections::HashMap;

use nix::sys::signal::Signal;

use super::{Far, comes_to, fleet};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};
use crate::offload::{much, records};

tests! {
    little_goes_to_the_quick_one_and_much_to_both: [Bus, Low],
}

async fn little_goes_to_the_quick_one_and_much_to_both() -> Outcome {
    // Whose texts wait for others, though none come.
    let slow = Setup::real("low")?.setting("batch_delay_us_max", "150000");
    let (slow, quick) = (Far::of(slow).await?, Far::start("low").await?);
    let (at_slow, at_quick) = (slow.gateway().await?, quick.gateway().await?);
    let setup = fleet("low", "openai", &[&at_slow.url(""), &at_quick.url("")])?;
    let (_bus, setup, daemon) = setup.setting("gpu_device", "all").alone().await?;
    let mut computed: HashMap<String, usize> = HashMap::new();
    for _ in 0..30 {
        let reply = daemon.client().packed(&["a short text"], HashMap::new()).await?;
        *computed.entry(reply.info("device")?).or_default() += 1;
    }
    // What other programs take away for a moment may send some to the slow one; by turns it would have half.
    assert!(computed.get("remote:1").is_some_and(|texts| *texts > 20), "{computed:?}");
    let texts = vec![much(); 16].concat();
    eventually("a call that both compute", async || {
        let reply = daemon.client().packed(&texts, HashMap::new()).await?;
        Ok(reply.info::<String>("device")?.split(',').count() == 2)
    })
    .await?;
    at_quick.process.signal(Signal::SIGKILL)?;
    comes_to("remote:0", &daemon).await?;
    daemon.stop().await?;
    assert_eq!(records(&setup)?.len(), 2, "one for each of them");
    slow.daemon.stop().await?;
    quick.daemon.stop().await
}
