//! Wrong values in each source of settings: one message with all of them, and the exit code.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use op_dbus_api::ErrorName;
use serde_json::json;
use tokio::process::Command;

use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Options, refused};
use crate::harness::command::{Finished, clean, finish, in_own_mounts};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::needs::{op_dbus, store};
use crate::harness::registry::tests;

tests! {
    a_wrong_bus_in_the_environment_is_named: [],
    every_mistake_is_named_at_once: [Bus],
    mistakes_in_flags_are_wrong_usage: [Bus],
    settings_that_contradict_each_other: [Bus],
    drop_ins_are_read_and_named: [Bus, Root],
    a_configuration_that_is_not_there: [Bus],
    checking_a_configuration: [],
    a_path_that_is_no_text_is_named: [],
    a_default_prompt_that_is_not_there_is_told: [Medium],
    a_default_prompt_that_fills_the_model_is_told: [Medium],
    a_model_of_other_dimensions_is_told: [Medium],
    workers_log_as_the_last_reload_said: [Bus],
    a_level_of_other_dimensions_is_the_callers_mistake: [Bus, Low, High],
    a_model_of_other_dimensions_in_force_is_no_callers_mistake: [Bus, High],
    a_reload_tells_where_a_missing_model_was_named: [Bus, Low],
}

/// A start that must be refused with `code`.
async fn refused_start(setup: &Setup, code: i32) -> Outcome<String> {
    let bus = PrivateBus::start().await?;
    let finished = finish(setup.command(&bus)?, "").await?;
    assert_eq!(finished.code, Some(code), "{}", finished.stderr);
    Ok(finished.stderr)
}

fn assert_names(message: &str, expected: &[&str]) {
    for part in expected {
        assert!(message.contains(part), "{part} is missing in:\n{message}");
    }
}

async fn every_mistake_is_named_at_once() -> Outcome {
    let setup = Setup::sim()?
        .setting("vector_level", "hgih")
        .setting("batch_tokens_maks", "512")
        .env("OP_DBUS_QUOTA_TOKENS", "many")
        .env("OP_DBUS_VECTOR_LEVLE", "low")
        .flag("--threads=-3");
    let message = refused_start(&setup, 6).await?;
    assert_names(&message, &["config.toml, line", "hgih", "high"]);
    // Unknown names come with the one that was meant.
    assert_names(&message, &["batch_tokens_maks", "batch_tokens_max"]);
    assert_names(&message, &["OP_DBUS_QUOTA_TOKENS", "many"]);
    assert_names(&message, &["OP_DBUS_VECTOR_LEVLE", "OP_DBUS_VECTOR_LEVEL"]);
    assert_names(&message, &["--threads", "-3", "5 mistakes"]);
    Ok(())
}

async fn mistakes_in_flags_are_wrong_usage() -> Outcome {
    let setup = Setup::sim()?.flag("--vector-level=hgih").flag("--threads=0");
    let message = refused_start(&setup, 2).await?;
    assert_names(&message, &["--vector-level", "hgih", "--threads"]);
    // A flag that there is not is the same kind of mistake.
    let message = refused_start(&Setup::sim()?.flag("--vector-levle=low"), 2).await?;
    assert_names(&message, &["--vector-levle", "--vector-level"]);
    Ok(())
}

async fn settings_that_contradict_each_other() -> Outcome {
    let ort = || Ok::<_, Box<dyn std::error::Error>>(Setup::sim()?.setting("cpu_engine", "ort"));
    for precision in ["int8", "bf16"] {
        let setup = ort()?.env("OP_DBUS_PRECISION", precision);
        let message = refused_start(&setup, 6).await?;
        assert_names(&message, &["OP_DBUS_PRECISION: precision is", precision]);
        assert_names(&message, &["cpu_engine is ort (", "config.toml, line", "to native"]);
    }
    let message = refused_start(&ort()?.flag("--cpu-isa=avx2"), 2).await?;
    assert_names(&message, &["--cpu-isa", "avx2", "cpu_engine is ort", "cpu_isa to auto"]);
    Ok(())
}

/// Runs the daemon with `folder` laid over `/etc`, in a mount namespace of its own.
async fn with_etc(folder: &Path) -> Outcome<Finished> {
    let mut show = clean(op_dbus());
    show.args(["config", "show"]);
    let mount = format!("mount -t overlay overlay -o lowerdir={}:/etc /etc", folder.display());
    finish(in_own_mounts(&format!("{mount}; exec \"$@\""), &show), "").await
}

async fn drop_ins_are_read_and_named() -> Outcome {
    let etc = tempfile::tempdir()?;
    let drop_ins = etc.path().join("op-dbus/conf.d");
    fs::create_dir_all(&drop_ins)?;
    fs::write(etc.path().join("op-dbus/config.toml"), "vector_level = \"low\"\nthreads = 3\n")?;
    fs::write(drop_ins.join("20-late.toml"), "vector_level = \"high\"\n")?;
    fs::write(drop_ins.join("10-early.toml"), "vector_level = \"none\"\nquota_tokens = 77\n")?;
    fs::write(drop_ins.join("30-ignored.toml.bak"), "vector_level = 1\n")?;
    let shown = with_etc(etc.path()).await?.success()?;
    let line = |key: &str| {
        shown.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default().to_owned()
    };
    assert_names(&line("vector_level"), &["high", "20-late.toml"]);
    assert_names(&line("quota_tokens"), &["77", "10-early.toml"]);
    assert_names(&line("threads"), &["3", "config.toml"]);

    fs::write(drop_ins.join("40-wrong.toml"), "vector_level = 7\n")?;
    fs::write(drop_ins.join("50-broken.toml"), "vector_level = = \n")?;
    let wrong = with_etc(etc.path()).await?;
    assert_eq!(wrong.code, Some(6), "{}", wrong.stderr);
    assert_names(&wrong.stderr, &["40-wrong.toml", "vector_level", "50-broken.toml", "line 1"]);
    Ok(())
}

async fn a_configuration_that_is_not_there() -> Outcome {
    let setup = Setup::sim()?;
    let bus = PrivateBus::start().await?;
    let mut command = clean(op_dbus());
    command.arg("daemon").env("OP_DBUS_BUS", bus.address());
    command.env("OP_DBUS_CONFIG", "/nonexistent/config.toml");
    command.arg("--state-file").arg(setup.state_file());
    let finished = finish(command, "").await?;
    assert_eq!(finished.code, Some(6), "{}", finished.stderr);
    assert_names(&finished.stderr, &["OP_DBUS_CONFIG", "/nonexistent/config.toml"]);
    Ok(())
}

async fn checking_a_configuration() -> Outcome {
    let check = |level: &str| -> Command {
        let mut command = clean(op_dbus());
        command.args(["config", "check"]).env("OP_DBUS_VECTOR_LEVEL", level);
        command
    };
    finish(check("low"), "").await?.success()?;
    let refused = finish(check("lo"), "").await?;
    assert_eq!(refused.code, Some(6));
    assert_names(&refused.stderr, &["OP_DBUS_VECTOR_LEVEL", "low"]);
    // What may be fetched later is told; a fleet without an address, and nothing behind it, is refused.
    for (variables, code, said) in [
        (&[("OP_DBUS_MODEL", "nope")][..], 0, "nope is not installed"),
        (
            &[("OP_DBUS_MODEL_DIR", "/nowhere/models")],
            0,
            "vector_level is low (environment variable OP_DBUS_VECTOR_LEVEL), and \
             paraphrase-MiniLM-L3-v2 is not installed in /nowhere/models; \
             type `op-dbus models pull ",
        ),
        (&[("OP_DBUS_EXECUTION_PROVIDER", "remote")], 0, "nothing says where servers answer"),
        (
            &[("OP_DBUS_EXECUTION_PROVIDER", "remote"), ("OP_DBUS_FALLBACK", "none")],
            6,
            "nothing can be embedded",
        ),
        // As a library may.
        (
            &[
                ("OP_DBUS_EXECUTION_PROVIDER", "cuda"),
                ("OP_DBUS_FALLBACK", "none"),
                ("OP_DBUS_MODEL_DIR", "/nowhere/models"),
            ],
            0,
            "execution_provider is cuda, and cuda needs an ONNX Runtime library",
        ),
    ] {
        let mut command = check("low");
        command.envs(variables.iter().copied());
        let told = finish(command, "").await?;
        assert!(told.code == Some(code) && told.stderr.contains(said), "{code}: {}", told.stderr);
        assert!(!told.stdout.contains("in order"), "{said}: {}", told.stdout);
    }
    // Nobody needs the level's model there.
    for (name, value) in [("OP_DBUS_CPU_ENGINE", "sim"), ("OP_DBUS_VECTOR_LEVEL", "none")] {
        let mut command = check("low");
        command.env("OP_DBUS_MODEL_DIR", "/nowhere/models").env(name, value);
        let told = finish(command, "").await?;
        assert!(told.stdout.contains("in order"), "{name}: {}{}", told.stdout, told.stderr);
    }
    Ok(())
}

async fn a_path_that_is_no_text_is_named() -> Outcome {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join(OsStr::from_bytes(b"\xff.toml"));
    fs::write(&file, "threads = 3\n")?;
    // What another program might make of it.
    fs::write(folder.path().join("\u{fffd}.toml"), "threads = 4\n")?;
    for (words, flag) in [
        (&["config", "show"][..], "--config"),
        (&["config", "check"], "--state-file"),
        (&["doctor", "--quick"], "--config"),
    ] {
        let mut command = clean(op_dbus());
        command.args(words).arg(flag).arg(&file);
        let refused = finish(command, "").await?;
        assert_eq!(refused.code, Some(2), "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert_names(&refused.stderr, &[flag, r"\xFF.toml", "is not UTF-8 text"]);
    }
    Ok(())
}

async fn workers_log_as_the_last_reload_said() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let setup = setup.setting("log", "debug");
    setup.write_config()?;
    daemon.client().manager.reload().await?;
    assert_eq!(log_of_a_new_worker(&daemon).await?, "debug");
    // Of one that is refused nothing counts.
    let setup = setup.setting("log", "trace").setting("expect_dimensions", "7");
    setup.write_config()?;
    let refusal = daemon.client().manager.reload().await;
    refused(refusal, ErrorName::InvalidArgument)?;
    assert_eq!(log_of_a_new_worker(&daemon).await?, "debug");
    daemon.stop().await
}

async fn a_model_of_other_dimensions_is_told() -> Outcome {
    for (expected, code) in [("768", 6), ("384", 0)] {
        let mut command = clean(op_dbus());
        command.args(["config", "check"]);
        command.env("OP_DBUS_MODEL_DIR", store().join("models"));
        command.env("OP_DBUS_VECTOR_LEVEL", "medium");
        command.env("OP_DBUS_EXPECT_DIMENSIONS", expected);
        let told = finish(command, "").await?;
        let said = "all-MiniLM-L6-v2 has 384 dimensions, and expect_dimensions is 768";
        assert_eq!(told.code, Some(code), "{expected}: {}", told.stderr);
        assert_eq!(told.stderr.contains(said), code == 6, "{expected}: {}", told.stderr);
    }
    Ok(())
}

/// Has a worker take the place of the one that runs; what it was told to log.
async fn log_of_a_new_worker(daemon: &Daemon) -> Outcome<String> {
    daemon.client().manager.unload().await?;
    daemon.client().manager.warm_up().await?;
    let worker = daemon.workers().await?.pop().ok_or("no worker runs")?;
    let arguments = fs::read_to_string(format!("/proc/{worker}/cmdline"))?;
    let config = arguments.trim_end_matches('\0').rsplit('\0').next().unwrap_or_default();
    let config: serde_json::Value = serde_json::from_str(config)?;
    Ok(config["log"].as_str().unwrap_or_default().to_owned())
}

/// As what the settings forbid is no fault of the service.
async fn a_level_of_other_dimensions_is_the_callers_mistake() -> Outcome {
    let (_bus, _setup, daemon) =
        Setup::real("low")?.setting("expect_dimensions", "384").alone().await?;
    let words =
        ["mpnet-base-v2 has 768 dimensions, and expect_dimensions is 384", "ask for another model"];
    let call = daemon.client().packed(&["x"], Options::from([("level", "high".into())])).await;
    assert_names(&refused(call, ErrorName::InvalidArgument)?, &words);
    let change = daemon.client().manager.set_vector_level("high").await;
    assert_names(&refused(change, ErrorName::InvalidArgument)?, &words);
    daemon.stop().await
}

/// Nothing is served before, so that the reload is kept.
async fn a_model_of_other_dimensions_in_force_is_no_callers_mistake() -> Outcome {
    let (_bus, setup, daemon) =
        Setup::real("none")?.setting("expect_dimensions", "384").alone_as("disabled").await?;
    let setup = setup.setting("vector_level", "high");
    setup.write_config()?;
    refused(daemon.client().manager.reload().await, ErrorName::InvalidArgument)?;
    let message =
        refused(daemon.client().packed(&["x"], Options::new()).await, ErrorName::WorkerFailed)?;
    assert_names(&message, &["expect_dimensions is 384"]);
    daemon.stop().await
}

async fn a_reload_tells_where_a_missing_model_was_named() -> Outcome {
    let (_bus, setup, daemon) = Setup::real("low")?.alone().await?;
    let setup = setup.setting("model", "nobody");
    setup.write_config()?;
    let refusal = daemon.client().manager.reload().await;
    let message = refused(refusal, ErrorName::ModelNotInstalled)?;
    assert_names(&message, &["model is nobody (", "config.toml, line"]);
    daemon.stop().await
}

async fn a_wrong_bus_in_the_environment_is_named() -> Outcome {
    for arguments in [&["embed", "x"][..], &["bench"]] {
        let mut command = clean(op_dbus());
        command.args(arguments).env("OP_DBUS_BUS", "nonsense");
        let refused = finish(command, "").await?;
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("OP_DBUS_BUS"), "{arguments:?}: {}", refused.stderr);
    }
    let mut command = clean(op_dbus());
    command.arg("status").env("OP_DBUS_BUS", OsStr::from_bytes(b"\xff"));
    let refused = finish(command, "").await?;
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let said = "variable OP_DBUS_BUS is not UTF-8 text";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    Ok(())
}

async fn a_default_prompt_that_is_not_there_is_told() -> Outcome {
    let file = tempfile::NamedTempFile::new()?;
    let check = async |level: &str, prompts: &str| {
        let table = "[models.all-MiniLM-L6-v2]\ndefault_prompt = \"query\"\n";
        fs::write(file.path(), format!("{table}{prompts}"))?;
        let mut command = clean(op_dbus());
        command.args(["config", "check", "--config"]).arg(file.path());
        command.env("OP_DBUS_MODEL_DIR", store().join("models"));
        command.env("OP_DBUS_VECTOR_LEVEL", level);
        finish(command, "").await
    };
    // The model in force is not served with it; of another level calls alone are refused.
    for (level, code) in [("medium", 6), ("low", 0)] {
        let told = check(level, "").await?;
        let said = "default_prompt is \"query\", which the model does not have";
        assert!(told.code == Some(code) && told.stderr.contains(said), "{level}: {}", told.stderr);
        assert!(told.stderr.contains("prompts = { \"query\" = \"…\" }"), "{}", told.stderr);
        assert!(!told.stderr.contains("it has"), "it has none: {}", told.stderr);
        assert!(!told.stdout.contains("in order"), "{level}: {}", told.stdout);
    }
    let other = check("medium", "prompts = { passage = \"passage: \" }\n").await?;
    assert!(other.stderr.contains("does not have (it has passage);"), "{}", other.stderr);
    let right = check("medium", "prompts = { query = \"query: \" }\n").await?;
    assert!(right.code == Some(0) && right.stderr.is_empty(), "{}", right.stderr);
    assert!(right.stdout.contains("in order"), "{}", right.stdout);
    Ok(())
}

/// Nothing is read of a text behind it, unless a call asks for another prompt or for the end of texts.
async fn a_default_prompt_that_fills_the_model_is_told() -> Outcome {
    const MODEL: &str = "all-MiniLM-L6-v2";
    let long = "word ".repeat(300);
    // One of the user's own, of which no more is read than this; by itself it has such a prompt.
    let models = tempfile::tempdir()?;
    let (known, own) = (store().join("models").join(MODEL), models.path().join("mine"));
    fs::create_dir(&own)?;
    fs::copy(known.join("tokenizer.json"), own.join("tokenizer.json"))?;
    let record = fs::read(known.join("op-dbus.json"))?;
    let mut record: serde_json::Value = serde_json::from_slice(&record)?;
    record["name"] = "mine".into();
    record["level"] = serde_json::Value::Null;
    record["prompts"] = json!({"query": long, "none": ""});
    record["default_prompt"] = "query".into();
    fs::write(own.join("op-dbus.json"), record.to_string())?;
    let file = tempfile::NamedTempFile::new()?;
    let place = |line: usize| format!("{}, line {line}: ", file.path().display());
    let models = models.path().display();
    let mine = format!("model = \"mine\"\nmodel_dir = \"{models}\"\n[models.mine]\n");
    let built_in = format!(
        "vector_level = \"medium\"\nmodel_dir = \"{}\"\n[models.{MODEL}]\n",
        store().join("models").display()
    );
    let text = format!("prompts = {{ query = \"{long}\" }}\n");
    let default = "default_prompt = \"query\"\n";
    let of_text = |line: usize, model: &str| {
        format!("{}models.{model}.prompts.query is the default prompt, and fills", place(line))
    };
    for (settings, said) in [
        (format!("{built_in}{default}{text}"), of_text(5, MODEL)),
        (format!("{mine}{text}"), of_text(4, "mine")),
        (
            format!("{mine}{default}"),
            format!("{}models.mine.default_prompt is \"query\", which fills", place(4)),
        ),
        (mine.clone(), "the default prompt \"query\" that mine itself has fills".to_owned()),
    ] {
        fs::write(file.path(), settings)?;
        let mut command = clean(op_dbus());
        command.args(["config", "check", "--config"]).arg(file.path());
        let told = finish(command, "").await?;
        let said = format!("op-dbus: {said} all 256 tokens that the model reads, so that with ");
        assert!(told.code == Some(0) && told.stderr.contains(&said), "{said}: {}", told.stderr);
        assert!(!told.stdout.contains("in order"), "{said}: {}", told.stdout);
    }
    Ok(())
}
