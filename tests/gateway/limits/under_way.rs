//! Requests that are under way while a test does something else.

use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::json;
use tokio::process::Child;

use super::Stage;
use crate::harness::gateway::{Gateway, answer, curl};
use crate::harness::{Outcome, within};

/// curl on its way to `/embed`, as many times as wanted.
pub fn requests(gateway: &Gateway, count: usize, texts: &[&str]) -> Outcome<Vec<Child>> {
    let body = json!({"inputs": texts}).to_string();
    let start = |_| {
        let mut command = curl();
        command.args(["--json", &body]).arg(gateway.url("/embed"));
        Ok(command.stderr(Stdio::null()).kill_on_drop(true).spawn()?)
    };
    (0..count).map(start).collect()
}

/// Lets the workers go on, and all who wait have their answers.
pub async fn all_answered(stage: &Stage, waiting: Vec<Child>) -> Outcome {
    stage.daemon.signal_workers(Signal::SIGCONT).await?;
    for request in waiting {
        let output = within("an answer", request.wait_with_output()).await??;
        assert_eq!(answer(&String::from_utf8(output.stdout)?)?.status, 200);
    }
    Ok(())
}
