//! The command line as a client of the service: text, JSON, and exit codes.

mod away;
mod full;
mod outputs;
mod streams;
mod waiting;

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tokio::net::UnixListener;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{Finished, clean, cli, cli_with_input, finish};
use crate::harness::daemon::Setup;
use crate::harness::files::numbers;
use crate::harness::golden::floats;
use crate::harness::needs::{op_dbus, store};
use crate::harness::registry::{Test, tests};
use crate::harness::{Outcome, within};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    let others =
        [away::tests(), full::tests(), outputs::tests(), streams::tests(), waiting::tests()];
    tests().into_iter().chain(others.into_iter().flatten()).collect()
}

tests! {
    embed_prints_vectors: [Bus],
    embed_reads_files_and_standard_input: [Bus],
    a_matrix_without_rows_has_its_columns: [Bus],
    texts_that_are_cut_are_told: [Bus],
    rank_orders_texts: [Bus, Medium],
    similarity_prints_a_number: [Bus, Low],
    status_tells_people_and_programs: [Bus],
    status_waits_for_the_service: [Bus],
    exit_codes: [Bus],
    few_open_files_are_told: [],
    models_are_listed_and_verified: [Low],
    a_store_that_is_not_there_is_told: [],
    a_name_beside_all_is_not_passed_over: [],
    settings_are_shown_with_their_origin: [],
}

fn json_lines(text: &str) -> Outcome<Vec<Value>> {
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

async fn embed_prints_vectors() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().vectors(&["one", "two"]).await?;
    let out = cli(&bus, &["embed", "--json", "one", "two"]).await?.success()?;
    let lines = json_lines(&out)?;
    let found: Vec<_> = lines.iter().filter_map(|line| floats(&line["vector"])).collect();
    assert_eq!(found, expected);
    assert_eq!(lines[1]["index"], 1);
    assert_eq!(lines[1]["space"], daemon.client().embedder.vector_space().await?);

    let out = cli(&bus, &["embed", "--csv", "one", "two"]).await?.success()?;
    let row = |line: &str| -> Vec<f32> { line.split(',').filter_map(|x| x.parse().ok()).collect() };
    assert_eq!(out.lines().map(row).collect::<Vec<_>>(), expected);
    // Piped text has no colour.
    let out = cli(&bus, &["embed", "one"]).await?.success()?;
    assert!(!out.is_empty() && !out.contains('\u{1b}'), "{out:?}");
    daemon.stop().await
}

async fn embed_reads_files_and_standard_input() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let expected = daemon.client().vectors(&["first line", "second line"]).await?;
    let vectors = |out: &str| -> Outcome<Vec<Vec<f32>>> {
        Ok(json_lines(out)?.iter().filter_map(|line| floats(&line["vector"])).collect())
    };
    let lines = "first line\nsecond line\n";
    for words in [&["embed", "--json"][..], &["embed", "--json", "-"]] {
        let out = cli_with_input(&bus, words, lines).await?.success()?;
        assert_eq!(vectors(&out)?, expected, "{words:?}");
    }
    let file = setup.path("lines.txt");
    std::fs::write(&file, lines)?;
    let file = file.display().to_string();
    let out = cli(&bus, &["embed", "--json", "--file", &file]).await?.success()?;
    assert_eq!(vectors(&out)?, expected);

    let matrix = setup.path("vectors.npy");
    let name = matrix.display().to_string();
    cli_with_input(&bus, &["embed", "--npy", "--output", &name], lines).await?.success()?;
    let bytes = std::fs::read(matrix)?;
    let values = bytes.len() - 2 * 384 * 4;
    let header = String::from_utf8_lossy(&bytes[..values]).into_owned();
    assert!(bytes.starts_with(b"\x93NUMPY\x01\x00") && values % 64 == 0, "{header:?}");
    assert!(header.contains("'descr': '<f4'") && header.contains("(2, 384)"), "{header:?}");
    assert_eq!(numbers(&bytes[values..]), expected.concat());
    daemon.stop().await
}

async fn a_matrix_without_rows_has_its_columns() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let out = cli(&bus, &["embed", "--npy"]).await?.success()?;
    assert!(out.contains("'shape': (0, 384)"), "{out:?}");
    let nowhere = setup.path("nowhere").display().to_string();
    let mut command = clean(op_dbus());
    command.args(["embed", "--npy", "--bus", bus.address()]).env("TMPDIR", &nowhere);
    let refused = finish(command, "x").await?;
    let said = format!("no temporary file can be made in {nowhere}");
    assert!(refused.code == Some(1) && refused.stderr.contains(&said), "{}", refused.stderr);
    daemon.stop().await
}

async fn texts_that_are_cut_are_told() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let long = "x".repeat(1000);
    let two = "2 texts are longer than the model reads and cut (indices";
    let similarity = cli(&bus, &["similarity", &long, &long]).await?;
    assert!(similarity.stderr.contains(&format!("{two} 0, 1)")), "{}", similarity.stderr);
    let expected = daemon.client().embedder.similarity(&long, &long).await?;
    assert_eq!(similarity.success()?, format!("{expected:.6}\n"));
    // Blank lines are not ranked, and counted all the same.
    let words = ["rank", &long, "short", &long, " ", &long];
    let rank = cli(&bus, &words).await?;
    assert!(rank.stderr.contains(&format!("{two} 1, 3)")), "{}", rank.stderr);
    assert!(rank.stderr.contains("the query is longer"), "{}", rank.stderr);
    assert_eq!(rank.success()?.lines().count(), 3);
    for words in [["similarity", "one", "two"], ["rank", "one", "two"]] {
        assert_eq!(cli(&bus, &words).await?.stderr, "", "{words:?}");
    }
    daemon.stop().await
}

const LINES: [&str; 4] = [
    "disk sda1: no space left on device",
    "user carol logged in from the office",
    "the kettle in the kitchen was switched on",
    "backup finished in four minutes",
];

async fn rank_orders_texts() -> Outcome {
    let (bus, _setup, daemon) = Setup::real("medium")?.alone().await?;
    let question = "which hard drive is full?";
    let words = [&["rank", "--json", "--top", "2", question], &LINES[..]].concat();
    let ranked = json_lines(&cli(&bus, &words).await?.success()?)?;
    assert_eq!(ranked.len(), 2);
    assert_eq!(
        (&ranked[0]["index"], &ranked[0]["text"]),
        (&Value::from(0), &Value::from(LINES[0]))
    );
    assert!(ranked[0]["score"].as_f64() > ranked[1]["score"].as_f64());
    // From standard input and as text: the best comes first.
    let input = LINES.join("\n");
    let out = cli_with_input(&bus, &["rank", question], &input).await?.success()?;
    assert!(out.lines().next().is_some_and(|line| line.contains(LINES[0])), "{out}");
    daemon.stop().await
}

async fn similarity_prints_a_number() -> Outcome {
    let (bus, _setup, daemon) = Setup::real("low")?.alone().await?;
    let number = async |first: &str, second: &str| -> Outcome<f64> {
        Ok(cli(&bus, &["similarity", first, second]).await?.success()?.trim().parse()?)
    };
    let near = number("the disk is full", "no space left on the drive").await?;
    let far = number("the disk is full", "a violin concerto").await?;
    assert!(near > far + 0.2, "{near} {far}");
    let out = cli(&bus, &["similarity", "--json", "same", "same"]).await?.success()?;
    let same: Value = serde_json::from_str(&out)?;
    assert!(same["similarity"].as_f64().is_some_and(|cosine| cosine > 0.99999), "{out}");
    daemon.stop().await
}

async fn status_tells_people_and_programs() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let text = cli(&bus, &["status"]).await?.success()?;
    assert!(text.contains("ready") && text.contains("low") && text.contains("sim"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let status: Value = serde_json::from_str(&cli(&bus, &["status", "--json"]).await?.success()?)?;
    assert_eq!(status["properties"]["State"], "ready");
    assert_eq!(status["status"]["workers"].as_array().map(Vec::len), Some(1));
    assert!(status["statistics"]["calls"].is_u64());
    daemon.stop().await
}

async fn status_waits_for_the_service() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?;
    let waiting = cli(&bus, &["status", "--wait"]);
    let starting = setup.ready(&bus);
    let (text, daemon) = tokio::join!(within("op-dbus status --wait", waiting), starting);
    assert!(text??.success()?.contains("ready"));
    let daemon = daemon?;

    // The bus is not there either: whoever asks first meets a closed door.
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("socket");
    let door = UnixListener::bind(&socket)?;
    let mut command = clean(op_dbus());
    let address = format!("unix:path={}", socket.display());
    command.args(["status", "--wait", "--bus", &address]);
    let opening = async {
        drop(within("the first connection", door.accept()).await??);
        std::fs::remove_file(&socket)?;
        Outcome::Ok(symlink(bus.socket()?, &socket)?)
    };
    let (text, opened) = tokio::join!(finish(command, ""), opening);
    opened?;
    assert!(text?.success()?.contains("ready"));
    daemon.stop().await
}

async fn exit_codes() -> Outcome {
    let bus = PrivateBus::start().await?;
    // Nobody owns the name, and no such bus.
    let absent = cli(&bus, &["status"]).await?;
    assert_eq!(absent.code, Some(3), "{}", absent.stderr);
    let mut command = clean(op_dbus());
    command.args(["embed", "x", "--bus", "unix:path=/nonexistent/bus"]);
    assert_eq!(finish(command, "").await?.code, Some(3));
    for (kind, address, named) in [
        ("system", "junk", "DBUS_SYSTEM_BUS_ADDRESS, which is junk"),
        ("session", "unix:path=/none", "DBUS_SESSION_BUS_ADDRESS, which is unix:path=/none"),
        ("session", "", "DBUS_SESSION_BUS_ADDRESS is set and empty; unset it"),
    ] {
        for word in ["status", "daemon"] {
            let mut command = clean(op_dbus());
            command.args([word, "--bus", kind]);
            command.env(format!("DBUS_{}_BUS_ADDRESS", kind.to_uppercase()), address);
            let ended = finish(command, "").await?;
            assert!(ended.code != Some(0) && ended.stderr.contains(named), "{}", ended.stderr);
        }
    }

    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    let refused = cli(&bus, &["embed", "--truncate", "error", &"x".repeat(1000)]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("tokens") && refused.stdout.is_empty(), "{}", refused.stderr);
    let whole = cli(&bus, &["embed", "--truncate", "mean", &"x".repeat(1000)]).await?.stderr;
    assert!(whole.contains("mean of its chunks") && !whole.contains("cut"), "{whole}");
    let wrong = [&["embde", "x"][..], &["embed", "--nosuch"], &["rank"], &["status", "--wait=0"]];
    for wrong in wrong {
        assert_eq!(cli(&bus, wrong).await?.code, Some(2), "{wrong:?}");
    }
    assert_eq!(cli(&bus, &["embed", "x"]).await?.code, Some(0));
    daemon.stop().await
}

async fn few_open_files_are_told() -> Outcome {
    let mut told = String::new();
    // Which of them is too low depends on what this process was started with.
    for limit in 5..12 {
        let mut command = clean("sh");
        command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" status")]).arg(op_dbus());
        let refused = finish(command, "").await?;
        assert_ne!(refused.code, Some(101), "{limit}: {}", refused.stderr);
        told.push_str(&refused.stderr);
    }
    assert!(told.contains("op-dbus: can't start: too few files may be open"), "{told}");
    Ok(())
}

/// `op-dbus models` with the store in `folder`.
async fn models(folder: &Path, arguments: &[&str]) -> Outcome<Finished> {
    let mut command = clean(op_dbus());
    command.arg("models").arg("--model-dir").arg(folder).args(arguments);
    finish(command, "").await
}

async fn a_name_beside_all_is_not_passed_over() -> Outcome {
    let nothing = tempfile::tempdir()?;
    let mut command = clean(op_dbus());
    command.args(["models", "pull", "all", "mini", "--source", "folder", "--from"]);
    command.arg(nothing.path()).arg("--model-dir").arg(nothing.path());
    let refused = finish(command, "").await?;
    let said = "`mini` is not a level or a built-in model";
    assert!(refused.code == Some(2) && refused.stderr.contains(said), "{}", refused.stderr);
    assert!(refused.stderr.contains("`op-dbus models import PATH`"), "{}", refused.stderr);
    let apart = ["pull", "low", "--from", "x", "--source", "hub"];
    let refused = models(nothing.path(), &apart).await?;
    assert!(
        refused.code == Some(2) && refused.stderr.contains("drop --from"),
        "{}",
        refused.stderr
    );
    Ok(())
}

async fn a_store_that_is_not_there_is_told() -> Outcome {
    let folder = tempfile::tempdir()?;
    let (typo, file) = (folder.path().join("typo"), folder.path().join("file"));
    std::fs::write(&file, "")?;
    for (path, arguments, code) in
        [(&typo, "verify", 1), (&file, "verify", 1), (&file, "list", 1), (&typo, "list", 0)]
    {
        let said = models(path, &[arguments]).await?;
        assert_eq!(said.code, Some(code), "{arguments}: {}", said.stderr);
        let path = path.display().to_string();
        assert!(said.stderr.contains(&path), "{arguments}: {}", said.stderr);
    }
    let empty = models(folder.path(), &["verify"]).await?;
    assert_eq!(empty.code, Some(1), "{}", empty.stderr);
    // What is advised is for this store.
    let missing = models(folder.path(), &["verify", "low"]).await?;
    let advice = format!("L3-v2 --model-dir {}`", folder.path().display());
    assert!(missing.stderr.contains(&advice), "{}", missing.stderr);
    Ok(())
}

async fn models_are_listed_and_verified() -> Outcome {
    let folder = store().join("models");
    let models = async |arguments: &[&str]| models(&folder, arguments).await;
    let text = models(&["list"]).await?.success()?;
    assert!(text.contains("paraphrase-MiniLM-L3-v2") && text.contains("installed"), "{text}");
    let list: Value = serde_json::from_str(&models(&["list", "--json"]).await?.success()?)?;
    let low = list.as_array().and_then(|list| list.iter().find(|model| model["level"] == "low"));
    let low = low.ok_or("level low is not listed")?;
    assert_eq!((&low["dimensions"], &low["state"]), (&Value::from(384), &Value::from("installed")));
    models(&["verify", "low"]).await?.success()?;
    let missing = models(&["verify", "nosuch"]).await?;
    assert_eq!(missing.code, Some(1));
    assert!(missing.stderr.contains("nosuch"), "{}", missing.stderr);
    assert_eq!(models(&["verify", ""]).await?.code, Some(2));
    Ok(())
}

async fn settings_are_shown_with_their_origin() -> Outcome {
    let show = async |arguments: &[&str]| {
        let mut command = clean(op_dbus());
        command.args(["config", "show"]).args(arguments).env("OP_DBUS_VECTOR_LEVEL", "high");
        finish(command, "").await?.success()
    };
    let settings: Value = serde_json::from_str(&show(&["--json"]).await?)?;
    let settings = settings.as_array().ok_or("not an array")?;
    let level = settings.iter().find(|setting| setting["key"] == "vector_level");
    let level = level.ok_or("no setting vector_level")?;
    assert_eq!(level["value"], "high");
    assert!(
        level["origin"].as_str().is_some_and(|o| o.contains("OP_DBUS_VECTOR_LEVEL")),
        "{level}"
    );
    let text = show(&[]).await?;
    let line = text.lines().find(|line| line.starts_with("vector_level")).unwrap_or_default();
    assert!(line.contains("high") && line.contains("OP_DBUS_VECTOR_LEVEL"), "{line}");
    // What the defaults print is a configuration file that the daemon takes.
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), show(&["--defaults"]).await?)?;
    let path = file.path().display().to_string();
    let mut command = clean(op_dbus());
    command.args(["config", "check", "--config", &path]);
    finish(command, "").await?.success()?;
    // They are what is built in, whatever a file says.
    let mut command = clean(op_dbus());
    command.args(["config", "show", "--defaults", "--config", &path]);
    let refused = finish(command, "").await?;
    assert_eq!(refused.code, Some(2), "{}", refused.stdout);
    assert!(refused.stderr.contains("--config"), "{}", refused.stderr);
    Ok(())
}
