//! A terminal with a program in it, whose screen can be read and whose keys can be pressed.

use std::process::Stdio;

use tempfile::TempDir;
use tokio::process::Command;

use super::command::{clean, finish, started_by};
use super::{Outcome, within};

/// A tmux server of a test's own with one window of 80 columns and 24 lines.
pub struct Terminal {
    folder: TempDir,
}

impl Terminal {
    /// Opens the terminal on `command`, which is the last thing that runs in it.
    pub async fn open(command: &Command) -> Outcome<Self> {
        let terminal = Self { folder: tempfile::Builder::new().prefix("terminal-").tempdir()? };
        let mut tmux = terminal.tmux(&["-f", "/dev/null", "new-session", "-d"]);
        tmux.args(["-x", "80", "-y", "24"]);
        // The server hands on what it was started with.
        finish(started_by(tmux, command), "").await?.success()?;
        Ok(terminal)
    }

    fn tmux(&self, words: &[&str]) -> Command {
        let mut tmux = clean("tmux");
        tmux.arg("-S").arg(self.folder.path().join("socket")).args(words);
        tmux
    }

    /// Presses a key, as tmux names it.
    pub async fn press(&self, key: &str) -> Outcome {
        finish(self.tmux(&["send-keys", key]), "").await?.success().map(drop)
    }

    /// What is on the screen now.
    pub async fn screen(&self) -> Outcome<String> {
        finish(self.tmux(&["capture-pane", "-p"]), "").await?.success()
    }

    /// Whether the program has the screen for itself, apart from what was printed before.
    pub async fn is_taken(&self) -> Outcome<bool> {
        let words = ["display-message", "-p", "#{alternate_on}"];
        Ok(finish(self.tmux(&words), "").await?.success()?.trim() == "1")
    }

    /// Looks at the screen until it is as `wanted`, and returns it.
    pub async fn shows(&self, what: &str, wanted: impl Fn(&str) -> bool) -> Outcome<String> {
        let mut last = String::new();
        let shown = within(what, async {
            loop {
                last = self.screen().await?;
                if wanted(&last) {
                    return Ok(last.clone());
                }
            }
        });
        let shown: Outcome<Outcome<String>> = shown.await;
        shown.map_err(|error| format!("{error}; the screen shows:\n{last}"))?
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let mut end = self.tmux(&["kill-server"]);
        let _ = end.as_std_mut().stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}
