//! Changes that fail: what served goes on, with the same workers and for every call, the properties and the
//! state tell what is so, and the change can be made once what kept it from that is mended. And work that goes
//! on as it began behind a change that succeeds.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use nix::unistd::Pid;
use op_dbus_api::ErrorName;

use crate::harness::client::{Options, refused};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::files::content;
use crate::harness::load::Load;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, needs, within};
use crate::memory::slow_source;
use crate::models::{Damage, FILES, LOW, MEDIUM, with_copies};

tests! {
    a_change_to_a_level_that_is_damaged: [Bus, Low, Medium],
    a_change_to_a_provider_that_fails_in_its_proof: [Bus, Low, Ggml],
    changes_that_cannot_be_kept: [Bus],
    a_reload_that_finds_what_serves_damaged: [Bus, Low],
    a_change_of_prompt_leaves_a_job_alone: [Bus, Low],
    a_level_that_is_loaded_already_is_not_told_as_loaded_again: [Bus],
}

/// What a daemon is before a change that fails, and has to be behind it.
struct Before {
    properties: [String; 5],
    workers: Vec<Pid>,
    state: Option<String>,
}

impl Before {
    async fn of(daemon: &Daemon, setup: &Setup) -> Outcome<Self> {
        let embedder = &daemon.client().embedder;
        let properties = [
            embedder.state().await?,
            embedder.vector_level().await?,
            embedder.execution_provider().await?,
            embedder.requested_execution_provider().await?,
            embedder.fallback_reason().await?,
        ];
        let state = fs::read_to_string(setup.state_file()).ok();
        Ok(Self { properties, workers: daemon.workers().await?, state })
    }

    /// Looks whether all is so still. Behind the workers that there were those of the change may stand until they
    /// have ended.
    async fn holds(&self, daemon: &Daemon, setup: &Setup) -> Outcome {
        let now = Self::of(daemon, setup).await?;
        assert_eq!((&now.properties, &now.state), (&self.properties, &self.state));
        assert!(now.workers.starts_with(&self.workers), "{:?}, {:?}", self.workers, now.workers);
        eventually("the end of others", async || Ok(daemon.workers().await? == self.workers)).await
    }
}

async fn a_change_to_a_level_that_is_damaged() -> Outcome {
    let (bus, setup, daemon) = with_copies(&[LOW, MEDIUM])?.alone().await?;
    let manager = &daemon.client().manager;
    let count = daemon.workers().await?.len();
    for level in ["medium", "low"] {
        manager.set_vector_level(level).await?;
    }
    let are_alone = async || Ok(daemon.workers().await?.len() == count);
    eventually("the end of those that served before", are_alone).await?;
    let file = PathBuf::from(MEDIUM).join(FILES[0]);
    Damage::Flipped.apply(&setup.path("models").join(&file))?;
    let before = Before::of(&daemon, &setup).await?;
    let load = Load::start(&bus, &["one text", "and another"]).await?;
    refused(manager.set_vector_level("medium").await, ErrorName::ModelCorrupt)?;
    load.stop().await?;
    before.holds(&daemon, &setup).await?;

    fs::copy(needs::store().join("models").join(&file), setup.path("models").join(&file))?;
    manager.set_vector_level("medium").await?;
    daemon.stop().await?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, "medium");
    daemon.stop().await
}

async fn a_change_to_a_provider_that_fails_in_its_proof() -> Outcome {
    let setup = Setup::real("low")?.setting("providers.ggml.faults", "die_on_batch=1");
    let (bus, setup, daemon) = setup.alone().await?;
    let manager = &daemon.client().manager;
    let before = Before::of(&daemon, &setup).await?;
    let load = Load::start(&bus, &["one text", "and another"]).await?;
    let refusal = manager.set_execution_provider("ggml").await;
    let message = refused(refusal, ErrorName::ProviderUnavailable)?;
    assert!(message.contains("die on batch 1"), "{message}");
    let by = load.stop().await?;
    assert!(by.iter().all(|device| device.starts_with("cpu")), "{by:?}");
    before.holds(&daemon, &setup).await?;

    // Batches that no test gets to.
    let setup = setup.setting("providers.ggml.faults", "die_on_batch=1000000");
    setup.write_config()?;
    manager.reload().await?;
    manager.set_execution_provider("ggml").await?;
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await?;
    let daemon = setup.ready(&bus).await?;
    assert_eq!(daemon.client().embedder.execution_provider().await?, "ggml");
    daemon.stop().await
}

async fn changes_that_cannot_be_kept() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let manager = &daemon.client().manager;
    // A file where the folder of the state was: nobody can write there, root included.
    fs::remove_dir(setup.path("state"))?;
    fs::write(setup.path("state"), "")?;
    let before = Before::of(&daemon, &setup).await?;
    let load = Load::start(&bus, &["one text", "and another"]).await?;
    for refusal in [
        manager.set_vector_level("high").await,
        manager.set_vector_level("none").await,
        manager.set_execution_provider("auto").await,
    ] {
        let message = refused(refusal, ErrorName::NoSpace)?;
        assert!(message.contains("state"), "{message}");
        before.holds(&daemon, &setup).await?;
    }
    load.stop().await?;
    before.holds(&daemon, &setup).await?;

    fs::remove_file(setup.path("state"))?;
    manager.set_vector_level("high").await?;
    manager.set_execution_provider("auto").await?;
    daemon.client().embedder.embed("x").await?;
    daemon.stop().await?;
    let daemon = setup.ready(&bus).await?;
    let embedder = &daemon.client().embedder;
    assert_eq!(embedder.vector_level().await?, "high");
    assert_eq!(embedder.requested_execution_provider().await?, "auto");
    daemon.stop().await
}

/// The settings ask for the model that serves, in another way.
async fn a_reload_that_finds_what_serves_damaged() -> Outcome {
    let (bus, setup, daemon) = with_copies(&[LOW])?.alone().await?;
    let before = Before::of(&daemon, &setup).await?;
    let file = PathBuf::from(LOW).join(FILES[1]);
    Damage::Truncated.apply(&setup.path("models").join(&file))?;
    let setup = setup.setting("workers_per_device", "3");
    setup.write_config()?;
    let load = Load::start(&bus, &["one text", "and another"]).await?;
    refused(daemon.client().manager.reload().await, ErrorName::ModelCorrupt)?;
    load.stop().await?;
    before.holds(&daemon, &setup).await?;

    fs::copy(needs::store().join("models").join(&file), setup.path("models").join(&file))?;
    daemon.client().manager.reload().await?;
    daemon.client().embedder.embed("x").await?;
    eventually("three workers alone", async || Ok(daemon.workers().await?.len() == 3)).await?;
    daemon.stop().await
}

/// One result has the vectors of one prompt.
async fn a_change_of_prompt_leaves_a_job_alone() -> Outcome {
    let table = "models.paraphrase-MiniLM-L3-v2";
    let setup = Setup::real("low")?.setting(&format!("{table}.prompts.q"), "query: ");
    let (_bus, setup, daemon) = setup.alone().await?;
    let client = daemon.client();
    let (mut writer, job) = slow_source(client, Options::new()).await?;
    let before = client.vectors(&["a line"]).await?;
    let setup = setup.setting(&format!("{table}.default_prompt"), "q");
    setup.write_config()?;
    client.manager.reload().await?;
    assert_ne!(client.vectors(&["a line"]).await?, before, "the prompt is there for others");
    writer.write_all(b"a line\n")?;
    drop(writer);
    let (result, rows, dimensions, _) = within("the result", job.fetch()).await??;
    let bytes = content(result)?;
    let (first, second) = bytes.split_at(4 * dimensions as usize);
    assert_eq!((rows, first == second), (2, true));
    daemon.stop().await
}

/// Who counts loads by their message counts no change to what a call had loaded.
async fn a_level_that_is_loaded_already_is_not_told_as_loaded_again() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let high = Options::from([("level", "high".into())]);
    daemon.client().packed(&["a text"], high).await?;
    daemon.client().manager.set_vector_level("high").await?;
    daemon.process.says("model serves now: sim on sim:0").await?;
    let told = daemon.process.stderr();
    assert_eq!(told.matches("model loaded: sim on sim:0").count(), 2, "{told}");
    daemon.stop().await
}
