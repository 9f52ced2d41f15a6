//! A child process that can't outlive its test.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::needs::looks_into_all;
use super::{Outcome, eventually, journal, within};

/// A running program whose standard error goes to a file.
pub struct Process {
    name: String,
    child: Child,
    pid: Pid,
    log: PathBuf,
    /// Where its own part of the log begins.
    log_start: usize,
}

impl Process {
    /// Starts `command`. `log` takes its standard error; it's appended to, so that a program that
    /// is started twice leaves one log.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Outcome<Self> {
        let file = File::options().create(true).append(true).open(log)?;
        command.stderr(file);
        Self::spawn(name, command, log)
    }

    /// Starts `command`; its standard error is a pipe that the test reads itself.
    pub fn start_piped(name: &str, mut command: Command) -> Outcome<Self> {
        command.stderr(Stdio::piped());
        Self::spawn(name, command, Path::new(""))
    }

    fn spawn(name: &str, mut command: Command, log: &Path) -> Outcome<Self> {
        let log_start = fs::metadata(log).map_or(0, |log| usize::try_from(log.len()).unwrap_or(0));
        let child = command.spawn().map_err(|e| format!("can't start {name}: {e}"))?;
        let pid = child.id().ok_or("the process ended before it began")?;
        let pid = Pid::from_raw(i32::try_from(pid)?);
        Ok(Self { name: name.to_owned(), child, pid, log: log.to_owned(), log_start })
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// One that is to stop it is [`send`]'s.
    pub fn signal(&self, signal: Signal) -> Outcome {
        assert_ne!(signal, Signal::SIGSTOP);
        Ok(kill(self.pid, signal)?)
    }

    /// Waits until the process has ended.
    pub async fn ended(&mut self) -> Outcome<ExitStatus> {
        let what = format!("the end of {}", self.name);
        Ok(within(&what, self.child.wait()).await??)
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(log.get(self.log_start..).unwrap_or_default()).into_owned()
    }

    /// Waits until it has written `text` to standard error.
    pub async fn says(&self, text: &str) -> Outcome {
        eventually(text, async || Ok(self.stderr().contains(text))).await
    }

    /// Waits until it has started, of which a line with `text` on standard error tells; the line.
    pub async fn started(&mut self, text: &str) -> Outcome<String> {
        let mut line = None;
        eventually(text, async || {
            // Before it is read: who has ended writes no more.
            let ended = self.child.try_wait()?;
            let said = self.stderr();
            let mut whole = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            line = whole.find(|line| line.contains(text)).map(str::to_owned);
            match ended {
                Some(status) if line.is_none() => {
                    Err(format!("{} ended at once ({status}): {said}", self.name).into())
                }
                _ => Ok(line.is_some()),
            }
        })
        .await?;
        Ok(line.unwrap_or_default())
    }
}

/// What a process has mapped; nothing where we may not see it, because a worker lets root alone look.
pub fn mapped(process: Pid) -> Outcome<Option<String>> {
    match fs::read_to_string(format!("/proc/{process}/maps")) {
        Ok(maps) => Ok(Some(maps)),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            assert!(!looks_into_all(), "{error}");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Resident memory in bytes.
pub fn resident(process: Pid) -> Outcome<u64> {
    status_bytes(process, "VmRSS:")
}

/// Resident memory that is no file's, in bytes.
pub fn anonymous(process: Pid) -> Outcome<u64> {
    status_bytes(process, "RssAnon:")
}

/// The most resident memory so far, in bytes.
pub fn peak(process: Pid) -> Outcome<u64> {
    status_bytes(process, "VmHWM:")
}

fn status_bytes(process: Pid, key: &str) -> Outcome<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no such line")?;
    Ok(kib.parse::<u64>()? << 10)
}

/// Sends a signal. One that stops the process is waited for: its threads stop one by one, on a busy
/// machine long after the signal was sent, and until then they answer.
pub async fn send(signal: Signal, process: Pid) -> Outcome {
    kill(process, signal)?;
    if signal != Signal::SIGSTOP {
        return Ok(());
    }
    eventually("threads that have stopped", async || {
        // Whoever has ended meanwhile does not run.
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        let mut states = threads.map(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").and_then(|(_, fields)| fields.chars().next())
        });
        Ok(states.all(|state| matches!(state, None | Some('T' | 't' | 'X' | 'Z'))))
    })
    .await
}

/// The children of a process.
pub fn children(parent: Pid) -> Outcome<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(pid) = entry.file_name().to_string_lossy().parse() else { continue };
        // Whoever has ended meanwhile is nobody's child.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit_once(") ").unwrap_or_default().1.split(' ').skip(1);
        if fields.next() == Some(parent.to_string().as_str()) {
            children.push(Pid::from_raw(pid));
        }
    }
    Ok(children)
}

impl Drop for Process {
    fn drop(&mut self) {
        // The kernel takes a moment to end a killed process, and nothing of it may be left when
        // the test's folder goes.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.start_kill();
            while let Ok(None) = self.child.try_wait() {
                std::thread::yield_now();
            }
        }
        journal::keep(&self.name, &self.stderr());
    }
}

/// Whether a process is there. Whoever inherits one may leave it as a zombie, which is as good as gone.
pub fn runs(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}
