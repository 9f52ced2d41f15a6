//! Damaged files of a model or of the cache: the daemon stays up and names the file, and other
//! levels still serve.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use op_dbus_api::ErrorName;
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::registry::tests;
use crate::harness::{Outcome, needs};

tests! {
    damaged_files_are_named: [Bus, Low],
    a_damaged_record_is_named: [Bus, Low],
    another_level_still_serves: [Bus, Low, Medium],
    a_repaired_model_is_served_after_a_reload: [Bus, Low],
    damaged_graphs_in_the_cache_are_built_again: [Bus, Low],
    a_cache_that_cannot_be_written_is_done_without: [Bus, Low],
}

const LOW: &str = "paraphrase-MiniLM-L3-v2";
const MEDIUM: &str = "all-MiniLM-L6-v2";
const FILES: [&str; 3] = ["model.safetensors", "tokenizer.json", "config.json"];

/// What can happen to a file.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Truncated,
    Flipped,
    Oversized,
    Missing,
}

impl Damage {
    const ALL: [Self; 4] = [Self::Truncated, Self::Flipped, Self::Oversized, Self::Missing];

    fn apply(self, path: &Path) -> Outcome {
        let middle = fs::metadata(path)?.len() / 2;
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        match self {
            Self::Truncated => file.set_len(middle)?,
            Self::Flipped => {
                let byte = fs::read(path)?[usize::try_from(middle)?];
                file.seek(SeekFrom::Start(middle))?;
                file.write_all(&[byte ^ 1])?;
            }
            // Sparse: a file of a terabyte that takes no room.
            Self::Oversized => file.set_len(1 << 40)?,
            Self::Missing => fs::remove_file(path)?,
        }
        Ok(())
    }
}

/// A daemon's files with a store of its own: copies of `models`, with the library beside them.
fn with_copies(models: &[&str]) -> Outcome<Setup> {
    let setup = Setup::real("low")?;
    for model in models {
        copy_folder(&needs::store().join("models").join(model), &setup.path("models").join(model))?;
    }
    std::os::unix::fs::symlink(needs::store().join("runtime"), setup.path("runtime"))?;
    let models = setup.path("models").display().to_string();
    Ok(setup.setting("model_dir", &models))
}

async fn damaged_files_are_named() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_copies(&[LOW])?;
    for file in FILES {
        for damage in Damage::ALL {
            let path = setup.path("models").join(LOW).join(file);
            damage.apply(&path)?;
            let daemon = setup.start(&bus).await?;
            assert_eq!(daemon.settled().await?, "failed", "{damage:?} {file}");
            let refusal = daemon.client().embedder.embed("x").await;
            let message = refused(refusal, ErrorName::ModelCorrupt)?;
            assert!(message.contains(file), "{damage:?} {file}: {message}");
            // Everything but embedding answers.
            daemon.client().manager.list_levels().await?;
            daemon.client().manager.list_models().await?;
            daemon.stop().await?;
            fs::copy(needs::store().join("models").join(LOW).join(file), &path)?;
        }
    }
    Ok(())
}

async fn a_damaged_record_is_named() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_copies(&[LOW])?;
    let record = setup.path("models").join(LOW).join("op-dbus.json");
    let good = fs::read_to_string(&record)?;
    let deep = "[".repeat(100_000);
    for damage in ["", "{}", &good[..good.len() / 2], &deep] {
        fs::write(&record, damage)?;
        let daemon = setup.start(&bus).await?;
        assert_eq!(daemon.settled().await?, "failed");
        let refusal = daemon.client().embedder.embed("x").await;
        let message = refused(refusal, ErrorName::ModelCorrupt)?;
        assert!(message.contains("op-dbus.json"), "{message}");
        daemon.client().manager.list_models().await?;
        daemon.stop().await?;
    }
    Ok(())
}

async fn another_level_still_serves() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_copies(&[LOW, MEDIUM])?;
    Damage::Flipped.apply(&setup.path("models").join(LOW).join(FILES[0]))?;
    let daemon = setup.start(&bus).await?;
    assert_eq!(daemon.settled().await?, "failed");
    let client = daemon.client();
    let medium = || Options::from([("level", Variant::from("medium"))]);
    let reply = client.packed(&["still there"], medium()).await?;
    assert_eq!(reply.info::<String>("model")?, MEDIUM);
    refused(client.embedder.embed("x").await, ErrorName::ModelCorrupt)?;
    // A change to the level that works ends the failure; one to the damaged level is refused.
    client.manager.set_vector_level("medium").await?;
    assert_eq!(daemon.settled().await?, "ready");
    refused(client.manager.set_vector_level("low").await, ErrorName::ModelCorrupt)?;
    assert_eq!(client.vectors(&["still there"]).await?, reply.vectors);
    daemon.stop().await
}

async fn a_repaired_model_is_served_after_a_reload() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = with_copies(&[LOW])?;
    let path = setup.path("models").join(LOW).join(FILES[1]);
    Damage::Truncated.apply(&path)?;
    let daemon = setup.start(&bus).await?;
    assert_eq!(daemon.settled().await?, "failed");
    refused(daemon.client().manager.reload().await, ErrorName::ModelCorrupt)?;
    fs::copy(needs::store().join("models").join(LOW).join(FILES[1]), &path)?;
    daemon.client().manager.reload().await?;
    assert_eq!(daemon.settled().await?, "ready");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

async fn damaged_graphs_in_the_cache_are_built_again() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let daemon = setup.ready(&bus).await?;
    let expected = daemon.client().vectors(&["the same as before"]).await?;
    daemon.stop().await?;
    let cached = || -> Outcome<PathBuf> {
        let mut files = setup.path("cache").read_dir()?.flatten().map(|entry| entry.path());
        Ok(files.find(|path| path.is_file()).ok_or("nothing was cached")?)
    };
    for damage in [Damage::Truncated, Damage::Flipped, Damage::Oversized] {
        damage.apply(&cached()?)?;
        let daemon = setup.ready(&bus).await?;
        let found = daemon.client().vectors(&["the same as before"]).await?;
        assert_eq!(found, expected, "{damage:?}");
        daemon.stop().await?;
        assert!(fs::metadata(cached()?)?.len() < 1 << 30, "{damage:?}: not built again");
    }
    Ok(())
}

async fn a_cache_that_cannot_be_written_is_done_without() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let file = setup.path("not-a-folder");
    fs::write(&file, "")?;
    let setup = setup.setting("cache_dir", &file.join("cache").display().to_string());
    let daemon = setup.ready(&bus).await?;
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}
