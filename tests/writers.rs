//! What the service loads or obeys, and others may write.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use nix::unistd::geteuid;
use op_dbus_api::ErrorName::ProviderUnavailable;

use crate::harness::bus::PrivateBus;
use crate::harness::command::finish;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::users::OTHER;
use crate::harness::{Outcome, needs};

tests! {
    a_library_that_others_may_write_is_not_loaded: [Bus, Low, Runtime],
    a_configuration_that_others_may_write_is_not_obeyed: [Bus],
    cached_weights_that_others_may_write_are_made_anew: [Bus, Low],
    a_state_that_others_may_write_is_not_obeyed: [Bus],
}

fn chmod(path: &Path, mode: u32) -> Outcome {
    Ok(fs::set_permissions(path, Permissions::from_mode(mode))?)
}

async fn a_library_that_others_may_write_is_not_loaded() -> Outcome {
    let setup = Setup::real("low")?.setting("cpu_engine", "ort");
    let library = setup.path("own.so");
    fs::copy(needs::runtime().ok_or("no runtime")?, &library)?;
    let shown = library.display().to_string();
    let setup = setup.setting("runtime", &shown);
    for mode in [0o775, 0o666] {
        chmod(&library, mode)?;
        let message = setup.refusal(ProviderUnavailable).await?;
        let fix = format!("type `chmod go-w {shown}`");
        assert!(message.contains("`runtime`") && message.contains(&fix), "{message}");
    }
    chmod(&library, 0o755)?;
    if geteuid().is_root() {
        chown(&library, Some(OTHER.id), None)?;
        let message = setup.refusal(ProviderUnavailable).await?;
        assert!(message.contains("type `chown --reference="), "{message}");
        chown(&library, Some(0), None)?;
    }
    let (_bus, _setup, daemon) = setup.alone().await?;
    daemon.stop().await
}

async fn a_configuration_that_others_may_write_is_not_obeyed() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::sim()?);
    setup.write_config()?;
    let config = setup.config_file();
    chmod(&config, 0o666)?;
    let refused = finish(setup.command(&bus)?, "").await?;
    assert_eq!(refused.code, Some(6), "{}", refused.stderr);
    let fix = format!("(mode 0666); type `chmod go-w {}`", config.display());
    assert!(refused.stderr.contains(&fix), "{}", refused.stderr);

    chmod(&config, 0o644)?;
    let daemon = setup.ready(&bus).await?;
    chmod(&config, 0o666)?;
    let reloaded = daemon.client().manager.reload().await;
    let refusal = reloaded.err().ok_or("a file that others may write was read")?.to_string();
    assert!(refusal.contains(&fix), "{refusal}");
    daemon.stop().await
}

/// Who could write them would choose the vectors of all, at once and with nothing in the log.
async fn cached_weights_that_others_may_write_are_made_anew() -> Outcome {
    let (bus, setup, daemon) = Setup::real("low")?.alone().await?;
    let expected = daemon.client().vectors(&["as before"]).await?;
    daemon.stop().await?;
    let mut packed = fs::read_dir(setup.cached()?.join("weights"))?;
    let packed = packed.next().ok_or("no packed weights")??.path();
    let before = fs::metadata(&packed)?.ino();
    chmod(&packed, 0o666)?;
    let daemon = setup.ready(&bus).await?;
    let said = daemon.process.stderr();
    let reason = "others than its owner may write it (mode 0666)";
    assert!(said.contains("cached weights can't be used") && said.contains(reason), "{said}");
    assert_eq!(daemon.client().vectors(&["as before"]).await?, expected);
    let after = fs::metadata(&packed)?;
    assert!(after.ino() != before && after.mode() & 0o022 == 0, "{after:?}");
    daemon.stop().await
}

async fn a_state_that_others_may_write_is_not_obeyed() -> Outcome {
    let (bus, setup) = (PrivateBus::start().await?, Setup::sim()?);
    fs::write(setup.state_file(), r#"{"version":1,"settings":{"vector_level":"none"}}"#)?;
    chmod(&setup.state_file(), 0o646)?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "low");
    let said = daemon.process.stderr();
    assert!(said.contains("may write it (mode 0646); it was moved to"), "{said}");
    assert!(!setup.state_file().exists());
    daemon.stop().await
}
