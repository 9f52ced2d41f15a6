//! What workers leave to other programs.

use std::fs;

use nix::unistd::Pid;

use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::process::children;
use crate::harness::registry::tests;

tests! {
    workers_give_way_to_other_programs: [Bus, Low],
}

/// The nice value of each thread of a process.
fn nice_values(process: Pid) -> Outcome<Vec<i32>> {
    let mut values = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        // One that has ended meanwhile has none.
        let Ok(stat) = fs::read_to_string(thread?.path().join("stat")) else { continue };
        let (_, behind_the_name) = stat.rsplit_once(") ").ok_or("no name")?;
        values.push(behind_the_name.split(' ').nth(16).ok_or("too short")?.parse()?);
    }
    Ok(values)
}

async fn workers_give_way_to_other_programs() -> Outcome {
    let own = nice_values(Pid::this())?[0];
    for (setting, expected) in [(None, own + 5), (Some("0"), own), (Some("19"), 19)] {
        let setup = Setup::real("low")?;
        let setup = match setting {
            Some(nice) => setup.setting("worker_nice", nice),
            None => setup,
        };
        let (_bus, _setup, daemon) = setup.alone().await?;
        assert!(nice_values(daemon.process.pid())?.iter().all(|nice| *nice == own));
        let workers = children(daemon.process.pid())?;
        assert!(!workers.is_empty());
        for worker in workers {
            let found = nice_values(worker)?;
            assert!(found.iter().all(|nice| *nice == expected.min(19)), "{setting:?}: {found:?}");
        }
        daemon.stop().await?;
    }
    Ok(())
}
