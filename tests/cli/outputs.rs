//! Where output goes: files that `op-dbus embed --output` takes the place of, pipes that nobody reads any more, and
//! people, who are told which texts of their files are meant.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use super::json_lines;
use crate::harness::command::{clean, cli, cli_with_input, finish, in_own_mounts};
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::golden::floats;
use crate::harness::needs::{self, op_dbus};
use crate::harness::registry::tests;
use crate::harness::users::{MEMBER, OTHER, SERVICE, Users};
use crate::harness::{Outcome, fixture, within};

tests! {
    embed_keeps_an_old_file_until_there_is_another: [Bus],
    embed_keeps_an_old_file_where_there_is_no_room: [Bus, Root],
    of_two_commands_with_one_file_one_fails: [Bus],
    embed_gives_an_old_file_to_nobody_else: [Bus, Root],
    embed_adds_to_what_it_was_started_with: [Bus],
    models_are_verified_and_removed_whoever_reads_it: [],
    libraries_are_verified_whoever_reads_it: [Runtime],
    a_verdict_is_the_same_whoever_reads_it: [],
    texts_are_told_by_their_files_and_lines: [Bus],
    what_is_told_controls_no_terminal: [],
}

async fn embed_keeps_an_old_file_until_there_is_another() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let file = setup.path("old");
    let name = file.display().to_string();
    fs::write(&file, "one\ntwo\n")?;
    let nowhere = setup.path("nowhere").display().to_string();
    let failing = [&["--level", "huge", "x"][..], &["--expect-space", "other", "x"]];
    for arguments in failing.into_iter().chain([&["--file", &nowhere][..]]) {
        for format in ["--npy", "--csv"] {
            let words = [&["embed", format, "--output", &name], arguments].concat();
            assert_eq!(cli(&bus, &words).await?.code, Some(1), "{words:?}");
            assert_eq!(fs::read(&file)?, b"one\ntwo\n", "{words:?}");
        }
    }
    // A file may be replaced by its own vectors.
    cli(&bus, &["embed", "--json", "--file", &name, "--output", &name]).await?.success()?;
    let lines = json_lines(&fs::read_to_string(&file)?)?;
    let found: Vec<_> = lines.iter().filter_map(|line| floats(&line["vector"])).collect();
    assert_eq!(found, daemon.client().vectors(&["one", "two"]).await?);
    daemon.stop().await
}

/// One that can't be replaced, as it is mounted where it is, from a file system that is too small for another.
async fn embed_keeps_an_old_file_where_there_is_no_room() -> Outcome {
    const SMALL: &str = "\
        mount -t tmpfs -o size=64k none \"$SMALL\"; echo of an earlier run >\"$SMALL/old\"; \
        mount --bind \"$SMALL/old\" \"$OLD\"; \"$@\" || echo \"ended with $?\"; cat \"$OLD\"";
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let [small, old, texts] = ["small", "old", "texts"].map(|name| setup.path(name));
    fs::create_dir(&small)?;
    fs::write(&old, "")?;
    fs::write(&texts, "a line of text\n".repeat(100))?;
    let mut embed = clean(op_dbus());
    embed.args(["embed", "--npy", "--bus", bus.address(), "--file"]).arg(&texts);
    embed.arg("--output").arg(&old);
    let mut command = in_own_mounts(SMALL, &embed);
    command.env("SMALL", &small).env("OLD", &old);
    let ended = finish(command, "").await?;
    assert!(ended.stderr.contains("No space left on device"), "{}", ended.stderr);
    assert_eq!(ended.success()?, "ended with 1\nof an earlier run\n");
    daemon.stop().await
}

/// The one that would lose the vectors of the other, or has lost its own.
async fn of_two_commands_with_one_file_one_fails() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    for (format, told) in [
        ("--npy", "another program has put a file there meanwhile, which is left as it is"),
        ("--csv", "another program has removed or replaced the file meanwhile"),
    ] {
        let before = daemon.client().counter("calls").await?;
        let file = setup.path(format);
        let name = file.display().to_string();
        let words = ["embed", format, "--output", &name, "--bus", bus.address()];
        let mut first = clean(op_dbus());
        first.args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut first = first.spawn()?;
        let mut texts = first.stdin.take().ok_or("no standard input")?;
        texts.write_all(b"one\n").await?;
        // By then it knows where its vectors go.
        daemon.client().counted("calls", before + 1).await?;
        cli(&bus, &["embed", format, "--output", &name, "two", "three"]).await?.success()?;
        let whole = fs::read(&file)?;
        drop(texts);
        let ended = within("the first command", first.wait_with_output()).await??;
        let said = String::from_utf8(ended.stderr)?;
        assert_eq!(ended.status.code(), Some(1), "{format}: {said}");
        assert!(said.contains(&format!("can't write the output to {name}: {told}")), "{said}");
        assert_eq!(fs::read(&file)?, whole, "{format}");
    }
    daemon.stop().await
}

/// One whose file has a group that they are not in, and one who may write to another's file by a group.
async fn embed_gives_an_old_file_to_nobody_else() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    for (user, owner, mode) in [(OTHER, OTHER, 0o640), (MEMBER, OTHER, 0o664)] {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("old");
        fs::write(&file, "of an earlier run")?;
        chown(&file, Some(owner.id), Some(SERVICE.id))?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
        chown(folder.path(), Some(user.id), None)?;
        let old = fs::metadata(&file)?;
        let mut command = clean(op_dbus());
        command.args(["embed", "--csv", "--bus", bus.address(), "--output"]).arg(&file).arg("x");
        finish(user.runs(&command), "").await?.success()?;
        let new = fs::metadata(&file)?;
        let rights = |file: &fs::Metadata| (file.uid(), file.gid(), file.mode(), file.ino());
        assert_eq!(rights(&new), rights(&old), "as {}", user.name);
        assert_eq!(fs::read_to_string(&file)?.lines().count(), 1);
        assert_eq!(fs::read_to_string(&file)?.split(',').count(), 384);
        assert_eq!(folder.path().read_dir()?.count(), 1);
    }
    daemon.stop().await
}

/// What a shell has opened to be appended to, by its names.
async fn embed_adds_to_what_it_was_started_with() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let file = setup.path("log");
    let script = "exec \"$0\" embed \"$1\" --output \"$2\" --bus \"$3\" x >>\"$4\" 3>>\"$4\"";
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/fd/3"] {
        for format in ["--csv", "--npy"] {
            fs::write(&file, "before\n")?;
            let mut command = clean("sh");
            command.args(["-c", script]).arg(op_dbus()).args([format, name, bus.address()]);
            command.arg(&file);
            finish(command, "").await?.success()?;
            let found = fs::read(&file)?;
            let added = found.strip_prefix(b"before\n").ok_or(format!("{name} was emptied"))?;
            let is_whole = match format {
                "--npy" => added.starts_with(b"\x93NUMPY") && added.len() == 128 + 384 * 4,
                _ => added.split(|byte| *byte == b',').count() == 384,
            };
            assert!(is_whole, "{format} {name}: {} bytes", added.len());
        }
    }
    daemon.stop().await
}

/// Runs `op-dbus` with the store in `folder` and with an output that nobody reads; its exit code and what it says of
/// failures.
async fn unread(words: &[&str], folder: &Path) -> Outcome<(Option<i32>, String)> {
    let mut command = clean(op_dbus());
    command
        .args(words)
        .env("OP_DBUS_MODEL_DIR", folder)
        .env("OP_DBUS_BUS", "unix:path=/nonexistent");
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    command.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).kill_on_drop(true);
    let ended = within("the command", command.spawn()?.wait_with_output()).await??;
    Ok((ended.status.code(), String::from_utf8(ended.stderr)?))
}

async fn models_are_verified_and_removed_whoever_reads_it() -> Outcome {
    let setup = Setup::sim()?;
    for name in ["one", "two"] {
        setup.import(fixture("golden/tiny-bert"), &["--name", name]).await?.success()?;
    }
    let folder = setup.path("models");
    let all_is_well = (Some(0), String::new());
    assert_eq!(unread(&["models", "verify"], &folder).await?, all_is_well);
    let weights = folder.join("two/tokenizer.json");
    let mut bytes = fs::read(&weights)?;
    bytes[0] ^= 1;
    fs::write(&weights, bytes)?;
    let (code, said) = unread(&["models", "verify"], &folder).await?;
    assert!(code == Some(1) && said.contains("two"), "{code:?} {said}");
    // Nothing is removed beside a name that is wrong; one that is named twice is one.
    let (code, said) = unread(&["models", "remove", "one", "three"], &folder).await?;
    assert!(code == Some(1) && said.contains("three"), "{code:?} {said}");
    assert!(folder.join("one").exists());
    assert_eq!(unread(&["models", "remove", "one", "two", "one"], &folder).await?, all_is_well);
    assert!(!folder.join("one").exists() && !folder.join("two").exists());
    Ok(())
}

async fn libraries_are_verified_whoever_reads_it() -> Outcome {
    let library = needs::runtime().ok_or("no library")?;
    let pulled = library.parent().ok_or("no folder")?;
    let folder = tempfile::tempdir()?;
    let name = pulled.file_name().ok_or("no name")?;
    copy_folder(pulled, &folder.path().join("runtime").join(name))?;
    let words = ["runtime", "verify", "cpu", "ggml"];
    let (code, said) = unread(&words, &folder.path().join("models")).await?;
    assert!(code == Some(1) && said.contains("onnxruntime-ggml"), "{code:?} {said}");
    Ok(())
}

async fn a_verdict_is_the_same_whoever_reads_it() -> Outcome {
    let nothing = tempfile::tempdir()?;
    for words in [&["doctor", "--quick"][..], &["doctor", "--quick", "--json"]] {
        assert_eq!(unread(words, nothing.path()).await?.0, Some(1), "{words:?}");
    }
    let (code, said) = unread(&["runtime", "verify"], &nothing.path().join("models")).await?;
    assert!(code == Some(1) && said.contains("no library is installed in "), "{code:?} {said}");
    for action in ["verify", "remove"] {
        let words = ["runtime", action, "cpu", "nope"];
        let (code, said) = unread(&words, &nothing.path().join("models")).await?;
        assert!(code == Some(2) && said.contains("`nope` is not a provider"), "{code:?} {said}");
    }
    Ok(())
}

async fn texts_are_told_by_their_files_and_lines() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let long = "x".repeat(1000);
    let files = ["first", "second"].map(|name| setup.path(name).display().to_string());
    // Enough lines for a call by a descriptor.
    fs::write(&files[0], "short\n".repeat(600))?;
    fs::write(&files[1], format!("short\n{long}\n"))?;
    let place = format!("{}:2", files[1]);
    for (command, more) in [("embed", &["--csv"][..]), ("rank", &["a query"])] {
        let words = [&[command][..], more, &["-f", &files[0], "-f", &files[1]]].concat();
        let told = cli(&bus, &words).await?;
        let cut = format!("op-dbus: 1 text is longer than the model reads and cut ({place})");
        assert!(told.stderr.starts_with(&cut), "{command}: {}", told.stderr);
        told.success()?;
    }
    let words = ["embed", "--truncate", "error", "-f", &files[0], "-f", &files[1]];
    let refused = cli(&bus, &words).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.starts_with(&format!("op-dbus: {place} has ")), "{}", refused.stderr);
    let lines = format!("short\n{long}\n");
    let told = cli_with_input(&bus, &["embed", "--csv"], &lines).await?;
    assert!(told.stderr.contains("and cut (standard input:2); "), "{}", told.stderr);
    let told = cli_with_input(&bus, &["embed", "--truncate", "error"], &lines).await?;
    assert!(told.stderr.starts_with("op-dbus: standard input:2 has "), "{}", told.stderr);
    daemon.stop().await
}

/// Names on the command line and in files may be anybody's.
async fn what_is_told_controls_no_terminal() -> Outcome {
    let folder = tempfile::tempdir()?;
    let record = folder.path().join("own/op-dbus.json");
    fs::create_dir(folder.path().join("own"))?;
    fs::write(&record, r#"{"version": 1, "name": "own", "family": "\u001b[2J"}"#)?;
    fs::set_permissions(&record, Permissions::from_mode(0o644))?;
    for (words, code, told) in [
        (&["models", "verify", "\u{1b}[2J\u{202e}"][..], 1, "·[2J· is not installed"),
        (&["models", "verify", "own"], 1, "variant `·[2J`"),
        (&["models", "list"], 0, "variant `·[2J`"),
        (&["models\u{202e}"], 2, "'models·'"),
    ] {
        let mut command = clean(op_dbus());
        command.args(words).env("OP_DBUS_MODEL_DIR", folder.path());
        let ended = finish(command, "").await?;
        let all = ended.stdout + &ended.stderr;
        assert_eq!(ended.code, Some(code), "{words:?}: {all}");
        assert!(all.contains(told), "{words:?}: {all:?}");
        let controls = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!all.contains(controls), "{words:?}: {all:?}");
    }
    Ok(())
}
