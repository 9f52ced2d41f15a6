//! Standard streams as others hand them over: without a reader, full, closed, such as do not wait, a file twice, a
//! terminal.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::Stdio;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;
use crate::harness::terminal::Terminal;
use crate::harness::{Outcome, eventually, within};

tests! {
    a_closed_pipe_is_no_error: [Bus],
    nothing_is_computed_for_a_reader_that_has_gone: [Bus],
    a_full_standard_error_changes_no_exit_code: [Bus],
    streams_that_were_closed_are_told: [Bus],
    texts_that_come_without_a_wait_are_waited_for: [Bus],
    an_output_that_does_not_wait_is_waited_for: [Bus],
    help_waits_for_such_an_output_too: [],
    nothing_is_read_that_is_written_meanwhile: [Bus],
    a_limit_of_file_sizes_is_named: [Bus],
    a_terminal_is_read_to_its_first_end: [Bus, Tmux],
}

/// `op-dbus … | head -1` ends quietly.
async fn a_closed_pipe_is_no_error() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let mut command = clean("sh");
    command.args(["-c", "\"$0\" embed --csv --bus \"$1\" | head -c 1"]);
    command.arg(op_dbus()).arg(bus.address());
    let lines = "one more text\n".repeat(5000);
    let finished = finish(command, &lines).await?;
    assert_eq!(finished.stdout.len(), 1);
    assert_eq!(finished.stderr, "", "{}", finished.stderr);
    // But one that is full is.
    for words in ["embed text", "config show", "--version"] {
        let mut command = clean("sh");
        command.args(["-c", &format!("exec \"$0\" {words} >/dev/full")]);
        command.arg(op_dbus()).env("OP_DBUS_BUS", bus.address());
        let finished = finish(command, "").await?;
        assert_eq!(finished.code, Some(1), "{words}: {}", finished.stderr);
        assert!(finished.stderr.contains("No space left"), "{words}: {}", finished.stderr);
    }
    daemon.stop().await
}

/// Who can't be told why is told by the exit code.
async fn a_full_standard_error_changes_no_exit_code() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let long = "x".repeat(1000);
    for (words, code) in [
        (&["embed", "--level", "nosuch", "x"][..], 1),
        (&["embde"], 2),
        (&["status", "--bus", "unix:path=/nonexistent/bus"], 3),
        (&["similarity", &long, "x"], 0),
    ] {
        let mut command = clean("sh");
        command.args(["-c", "\"$0\" \"$@\" 2>/dev/full"]).arg(op_dbus()).args(words);
        command.env("OP_DBUS_BUS", bus.address());
        let finished = finish(command, "").await?;
        assert_eq!(finished.code, Some(code), "{words:?}");
        assert_eq!(finished.stdout.is_empty(), code != 0, "{words:?}");
    }
    daemon.stop().await
}

/// `op-dbus embed`, which ends with its test.
fn embed(bus: &PrivateBus, words: &[&str]) -> Command {
    let mut command = clean(op_dbus());
    command.arg("embed").args(words).args(["--bus", bus.address()]);
    command.stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// `op-dbus` as a shell starts it, which has the bus as `$1` and `more` behind it.
fn script(bus: &PrivateBus, script: &str, more: &[&str]) -> Command {
    let mut command = clean("sh");
    command.args(["-c", script]).arg(op_dbus()).arg(bus.address()).args(more);
    command
}

async fn nothing_is_computed_for_a_reader_that_has_gone() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    // Nothing of a matrix is written before the last text.
    let mut command = embed(&bus, &["--npy"]);
    let mut child = command.stdin(Stdio::piped()).stdout(writer).spawn()?;
    let mut texts = child.stdin.take().ok_or("no standard input")?;
    texts.write_all(b"one\n").await?;
    let ended = within("the end of the command", child.wait_with_output()).await??;
    assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    drop(texts);
    daemon.stop().await
}

async fn streams_that_were_closed_are_told() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    for (words, told) in [
        ("x >&-", "op-dbus: can't write the output: Bad file descriptor"),
        ("--npy x >&-", "op-dbus: can't write the output: Bad file descriptor"),
        ("- <&-", "op-dbus: can't read standard input: Bad file descriptor"),
    ] {
        let command = script(&bus, &format!("exec \"$0\" embed --bus \"$1\" {words}"), &[]);
        let refused = finish(command, "").await?;
        assert_eq!(refused.code, Some(1), "{words}: {}", refused.stderr);
        assert!(refused.stderr.starts_with(told), "{words}: {}", refused.stderr);
    }
    // Who wants to lose it says so.
    for words in ["x >/dev/null", "x 1<>/dev/null", "- </dev/null", "- 0<>/dev/null"] {
        let command = script(&bus, &format!("exec \"$0\" embed --bus \"$1\" {words}"), &[]);
        finish(command, "").await?.success()?;
    }
    daemon.stop().await
}

/// As from node.js, whose pipes answer at once that nothing is there yet.
async fn texts_that_come_without_a_wait_are_waited_for() -> Outcome {
    let (bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let (texts, mut given) = std::io::pipe()?;
    fcntl(&texts, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut child = embed(&bus, &["--csv"]).stdin(texts).stdout(Stdio::piped()).spawn()?;
    let mut vectors = BufReader::new(child.stdout.take().ok_or("no standard output")?).lines();
    for text in ["one\n", "two\n"] {
        given.write_all(text.as_bytes())?;
        let vector = within("a vector", vectors.next_line()).await??;
        assert!(vector.is_some(), "none of {text}");
    }
    drop(given);
    let ended = within("the end of the command", child.wait_with_output()).await??;
    assert!(ended.status.success(), "{ended:?}");
    daemon.stop().await
}

/// What a command writes to a pipe that does not wait, has room for a page, and of which nobody takes anything before
/// it is full, as it has to become.
async fn taken_late(mut command: Command) -> Outcome<String> {
    let (taken, given) = std::io::pipe()?;
    fcntl(&given, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    // A page is what the kernel has, and may be 64 KiB.
    let room = usize::try_from(fcntl(&given, FcntlArg::F_SETPIPE_SZ(4096))?)?;
    let same = given.try_clone()?;
    command.stdin(Stdio::null()).stdout(given).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    drop(command);
    eventually("a full pipe", async || {
        let mut asked = [PollFd::new(same.as_fd(), PollFlags::POLLOUT)];
        let is_full = poll(&mut asked, PollTimeout::ZERO)? == 0;
        Ok(is_full || child.try_wait()?.is_some())
    })
    .await?;
    drop(same);
    let mut written = String::new();
    let mut taken = Receiver::from_owned_fd(taken.into())?;
    within("what is written", taken.read_to_string(&mut written)).await??;
    let ended = within("the end of the command", child.wait_with_output()).await??;
    assert!(ended.status.success(), "{ended:?}");
    assert!(written.len() > room, "{} bytes do not fill a pipe of {room}", written.len());
    Ok(written)
}

async fn an_output_that_does_not_wait_is_waited_for() -> Outcome {
    const LINES: usize = 300;
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let texts = setup.path("texts");
    fs::write(&texts, "a line of text\n".repeat(LINES))?;
    let command = embed(&bus, &["--csv", "--file", &texts.display().to_string()]);
    assert_eq!(taken_late(command).await?.lines().count(), LINES);
    daemon.stop().await
}

async fn help_waits_for_such_an_output_too() -> Outcome {
    let help = || {
        let mut command = clean(op_dbus());
        command.args(["daemon", "--help"]);
        command
    };
    let whole = finish(help(), "").await?.success()?;
    assert_eq!(taken_late(help()).await?, whole);
    Ok(())
}

async fn nothing_is_read_that_is_written_meanwhile() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let file = setup.path("texts");
    let name = file.display().to_string();
    for words in [
        "--file \"$2\" >>\"$2\"",
        "- <\"$2\" >>\"$2\"",
        "--file \"$2\" --output /dev/stdout >>\"$2\"",
        "--file \"$2\" --output /dev/fd/3 3>>\"$2\"",
    ] {
        fs::write(&file, "one\ntwo\n")?;
        // Else it might go on for as long as there is room on the disk.
        let limited = format!("ulimit -f 1000; exec \"$0\" embed --csv --bus \"$1\" {words}");
        let refused = finish(script(&bus, &limited, &[&name]), "").await?;
        assert_eq!(refused.code, Some(2), "{words}: {}", refused.stderr);
        let told = " is read and written at once: ";
        assert!(refused.stderr.contains(told), "{words}: {}", refused.stderr);
        assert_eq!(fs::read(&file)?, b"one\ntwo\n", "{words}");
    }
    // Behind another one.
    let more = "exec \"$0\" embed --csv --bus \"$1\" <\"$2\" >>\"$2.csv\"";
    finish(script(&bus, more, &[&name]), "").await?.success()?;
    daemon.stop().await
}

async fn a_limit_of_file_sizes_is_named() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let file = setup.path("texts");
    // Enough for calls by descriptors, of more bytes than the limit.
    fs::write(&file, "a line of text\n".repeat(3000))?;
    let limited = "ulimit -f 1; exec \"$0\" embed --csv --bus \"$1\" --file \"$2\"";
    let refused = finish(script(&bus, limited, &[&file.display().to_string()]), "").await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("(`ulimit -f`, LimitFSIZE=)"), "{}", refused.stderr);
    daemon.stop().await
}

/// A line that was not ended there is one; and a single text is no texts.
async fn a_terminal_is_read_to_its_first_end() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let vectors = setup.path("vectors");
    let words = "\"$0\" embed --file - --csv --output \"$2\" --bus \"$1\"";
    let words = format!("{words}; echo \"ended with $?\"; exec cat");
    let command = script(&bus, &words, &[&vectors.display().to_string()]);
    let terminal = Terminal::open(&command).await?;
    let asked = |screen: &str| screen.contains("reading texts from the terminal");
    terminal.shows("that it waits", asked).await?;
    for key in ["x", "Enter"] {
        terminal.press(key).await?;
    }
    terminal.shows("a text", |screen| screen.contains(" 1 text, ")).await?;
    // The first takes the line, as it is, to who reads it.
    for key in ["y", "C-d", "C-d"] {
        terminal.press(key).await?;
    }
    terminal.shows("the end", |screen| screen.contains("ended with 0")).await?;
    assert_eq!(fs::read_to_string(&vectors)?.lines().count(), 2);
    daemon.stop().await
}
