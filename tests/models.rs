//! Damaged files of a model or of the cache: the daemon stays up and names the file, and other
//! levels still serve.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use op_dbus_api::ErrorName;
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, refused};
use crate::harness::command::in_own_mounts;
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::files::copy_folder;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, needs, within};

tests! {
    damaged_files_are_named: [Bus, Low],
    a_damaged_record_is_named: [Bus, Low],
    a_store_that_hangs_keeps_nobody_and_nothing: [Bus, Root],
    another_level_still_serves: [Bus, Low, Medium],
    a_repaired_model_is_served_after_a_reload: [Bus, Low],
    a_model_that_comes_or_is_repaired_is_served_to_the_next_call: [Bus, Low],
    damaged_weights_in_the_cache_are_packed_again: [Bus, Low] =>
        damaged_caches_are_made_again("native"),
    damaged_graphs_in_the_cache_are_built_again: [Bus, Low, Runtime] =>
        damaged_caches_are_made_again("ort"),
    a_cache_that_cannot_be_written_is_done_without: [Bus, Low],
    a_cache_without_room_is_done_without: [Bus, Low, Root],
    a_read_only_cache_is_read_or_done_without: [Bus, Low, Root],
}

pub const LOW: &str = "paraphrase-MiniLM-L3-v2";
pub const MEDIUM: &str = "all-MiniLM-L6-v2";
pub const FILES: [&str; 3] = ["model.safetensors", "tokenizer.json", "config.json"];

/// What can happen to a file.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    Truncated,
    Flipped,
    Oversized,
    Missing,
}

impl Damage {
    const ALL: [Self; 4] = [Self::Truncated, Self::Flipped, Self::Oversized, Self::Missing];

    pub fn apply(self, path: &Path) -> Outcome {
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
pub fn with_copies(models: &[&str]) -> Outcome<Setup> {
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
        let daemon = setup.settled_as("failed", &bus).await?;
        let refusal = daemon.client().embedder.embed("x").await;
        let message = refused(refusal, ErrorName::ModelCorrupt)?;
        assert!(message.contains("op-dbus.json"), "{message}");
        daemon.client().manager.list_models().await?;
        daemon.stop().await?;
    }
    Ok(())
}

/// Whoever opens the record waits as for a server of files that has gone.
async fn a_store_that_hangs_keeps_nobody_and_nothing() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let record = setup.path("models").join("own").join("op-dbus.json");
    fs::create_dir_all(setup.path("models").join("own"))?;
    fs::write(&record, "{}")?;
    // The kernel asks whether it may be opened, and is given no answer.
    let flags = InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
    let asked = Fanotify::init(flags, EventFFlags::O_RDONLY)?;
    asked.mark(MarkFlags::FAN_MARK_ADD, MaskFlags::FAN_OPEN_PERM, AT_FDCWD, Some(&record))?;
    let manager = daemon.client().manager.clone();
    let listed = tokio::spawn(async move { manager.list_models().await });
    let is_asked = || match asked.read_events() {
        Ok(events) => Outcome::Ok(!events.is_empty()),
        Err(Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    };
    eventually("a reader of the record", async || is_asked()).await?;
    daemon.client().embedder.embed("somebody else").await?;
    daemon.stop().await?;
    refused(within("the end of the call", listed).await??, ErrorName::ShuttingDown)?;
    Ok(())
}

async fn another_level_still_serves() -> Outcome {
    let setup = with_copies(&[LOW, MEDIUM])?;
    Damage::Flipped.apply(&setup.path("models").join(LOW).join(FILES[0]))?;
    let (_bus, _setup, daemon) = setup.alone_as("failed").await?;
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
    let setup = with_copies(&[LOW])?;
    let path = setup.path("models").join(LOW).join(FILES[1]);
    Damage::Truncated.apply(&path)?;
    let (_bus, _setup, daemon) = setup.alone_as("failed").await?;
    refused(daemon.client().manager.reload().await, ErrorName::ModelCorrupt)?;
    fs::copy(needs::store().join("models").join(LOW).join(FILES[1]), &path)?;
    daemon.client().manager.reload().await?;
    assert_eq!(daemon.settled().await?, "ready");
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await
}

/// The next call is answered by the model that is there now; one before it may have found a try that began earlier.
async fn is_served(daemon: &Daemon) -> Outcome {
    let embed = || daemon.client().embedder.embed("x");
    if embed().await.is_err() {
        embed().await?;
    }
    daemon.state(|state| state == "ready").await.map(drop)
}

/// As a pull does it: under another name first.
async fn a_model_that_comes_or_is_repaired_is_served_to_the_next_call() -> Outcome {
    let setup = with_copies(&[LOW])?;
    let model = setup.path("models").join(LOW);
    let elsewhere = setup.path("models").join(".elsewhere");
    fs::rename(&model, &elsewhere)?;
    let (bus, setup, daemon) = setup.alone_as("failed").await?;
    refused(daemon.client().embedder.embed("x").await, ErrorName::ModelNotInstalled)?;
    fs::rename(&elsewhere, &model)?;
    is_served(&daemon).await?;
    daemon.stop().await?;

    Damage::Flipped.apply(&model.join(FILES[0]))?;
    let daemon = setup.settled_as("failed", &bus).await?;
    fs::rename(&model, &elsewhere)?;
    // A failure is answered from memory for some seconds.
    let is_missing = async || {
        let refusal = daemon.client().embedder.embed("x").await.err();
        Ok(refusal.is_some_and(|error| error.to_string().contains("is not installed")))
    };
    eventually("the other failure", is_missing).await?;
    daemon.process.says("is not installed").await?;
    let weights = needs::store().join("models").join(LOW).join(FILES[0]);
    fs::copy(weights, elsewhere.join(FILES[0]))?;
    fs::rename(&elsewhere, &model)?;
    is_served(&daemon).await?;
    daemon.stop().await
}

async fn damaged_caches_are_made_again(engine: &str) -> Outcome {
    let (bus, setup, daemon) = Setup::real("low")?.setting("cpu_engine", engine).alone().await?;
    let expected = daemon.client().vectors(&["the same as before"]).await?;
    daemon.stop().await?;
    let cached = || largest(&setup.path("cache"));
    for damage in [Damage::Truncated, Damage::Flipped, Damage::Oversized, Damage::Missing] {
        let (path, whole) = cached()?;
        damage.apply(&path)?;
        let daemon = setup.ready(&bus).await?;
        let found = daemon.client().vectors(&["the same as before"]).await?;
        assert_eq!(found, expected, "{damage:?}");
        // A file that is gone is as good as one that never was.
        match damage {
            Damage::Missing => assert!(!warns(&daemon)),
            Damage::Truncated | Damage::Flipped | Damage::Oversized => assert_warns(&daemon),
        }
        daemon.stop().await?;
        assert_eq!(cached()?, (path, whole), "{damage:?}: not made again");
    }
    Ok(())
}

/// The largest file in a folder, with its size.
fn largest(folder: &Path) -> Outcome<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        match path.is_dir() {
            true => found.extend(largest(&path)),
            false => found.push((path.clone(), fs::metadata(&path)?.len())),
        }
    }
    let largest = found.into_iter().max_by_key(|(_, bytes)| *bytes);
    largest.ok_or_else(|| format!("nothing is in {}", folder.display()).into())
}

async fn a_cache_that_cannot_be_written_is_done_without() -> Outcome {
    let setup = Setup::real("low")?;
    let file = setup.path("not-a-folder");
    fs::write(&file, "")?;
    // The weights and the calibration, each of which has a file of its own there.
    let setup = setup.setting("batch_tokens_max", "auto");
    let setup = setup.setting("cache_dir", &file.join("cache").display().to_string());
    let (_bus, _setup, daemon) = setup.alone().await?;
    daemon.client().embedder.embed("x").await?;
    assert_warns(&daemon);
    let said = daemon.process.stderr();
    assert!(said.contains("the calibration can't be cached"), "{said}");
    daemon.stop().await
}

async fn a_cache_without_room_is_done_without() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let cache = setup.path("cache");
    fs::create_dir(&cache)?;
    let mount = format!("mount -t tmpfs -o size=64k tmpfs {}", cache.display());
    let command = in_own_mounts(&format!("{mount}; exec \"$@\""), &setup.command(&bus)?);
    let daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    daemon.client().embedder.embed("x").await?;
    assert_warns(&daemon);
    daemon.stop().await
}

async fn a_read_only_cache_is_read_or_done_without() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let cache = setup.path("cache");
    fs::create_dir(&cache)?;
    let bind = format!("mount --bind {0} {0}; mount -o remount,ro,bind {0}", cache.display());
    let read_only = |setup: &Setup| -> Outcome<_> {
        Ok(in_own_mounts(&format!("{bind}; exec \"$@\""), &setup.command(&bus)?))
    };
    let daemon = setup.start_command(read_only(&setup)?, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let expected = daemon.client().vectors(&["the same"]).await?;
    assert_warns(&daemon);
    daemon.stop().await?;
    // What was cached before is as good as ever.
    setup.ready(&bus).await?.stop().await?;
    let daemon = setup.start_command(read_only(&setup)?, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    assert_eq!(daemon.client().vectors(&["the same"]).await?, expected);
    assert!(!warns(&daemon), "{}", daemon.process.stderr());
    daemon.stop().await
}

/// A start took longer than it has to.
fn assert_warns(daemon: &Daemon) {
    assert!(warns(daemon), "no warning of the cache in: {}", daemon.process.stderr());
}

fn warns(daemon: &Daemon) -> bool {
    let said = daemon.process.stderr();
    said.lines().any(|line| line.contains("WARN") && line.contains("cache"))
}
