//! Readings of drivers, by programs that stand in for ours, and the names that devices have.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// A program that is a shell script.
fn program(script: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    (folder, path)
}

/// For who answers, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

async fn refused(script: &str, limit: Duration) -> String {
    let (_folder, program) = program(script);
    ask(&program, limit, &mut None).await.unwrap_err()
}

const CARD: &str = r#"[{"name":"cuda:0","provider":"cuda","memory_total":80}]"#;

#[tokio::test]
async fn a_reading_is_shared_and_comes_behind_the_cpu() {
    // It answers once, so that a second process would be seen.
    let (folder, program) = program(&format!("mkdir $(dirname $0)/asked && echo '{CARD}'"));
    let reader = Reader { limit: PATIENCE, ..Reader::new(program) };
    reader.state.lock().await.until = Instant::now();
    let first = reader.read().await;
    // However long this test takes.
    reader.state.lock().await.until += Duration::from_secs(600);
    let again = reader.read().await;
    assert!(folder.path().join("asked").exists());
    for devices in [first, again] {
        let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, ["cpu:0", "cuda:0"]);
        assert_eq!((devices[1].memory_total, devices[1].memory_used), (Some(80), None));
    }
}

#[test]
fn a_load_asks_drivers_anew_where_none_was_there_a_moment_ago() {
    let quiet = r#"[{"name":"","provider":"cuda","problem":"no driver is loaded"}]"#;
    let (_folder, program) =
        program(&format!("mkdir $(dirname $0)/asked && echo '{quiet}' || echo '{CARD}'"));
    let reader = Reader { limit: PATIENCE, ..Reader::new(program) };
    let names = |devices: Vec<Device>| devices.into_iter().map(|one| one.name).collect::<Vec<_>>();
    assert_eq!(names(read_blocking(&reader).unwrap()), ["cpu:0", ""]);
    assert_eq!(names(read_blocking(&reader).unwrap()), ["cpu:0", "cuda:0"]);
}

#[tokio::test]
async fn a_driver_that_hangs_or_ends_the_process_is_told() {
    let bound = Duration::from_millis(200);
    assert_eq!(refused("exec tail -f /dev/null", bound).await, "a driver has not answered for 0 s");
    let message = refused("kill -SEGV $$", PATIENCE).await;
    assert!(
        message.starts_with("a driver ended the process that asked it (signal: 11"),
        "{message}"
    );
    let message = refused("echo a driver says hello", PATIENCE).await;
    assert!(message.starts_with("the reading is damaged"), "{message}");
    let message = ask(Path::new("/nowhere/op-dbus"), PATIENCE, &mut None).await.unwrap_err();
    assert!(message.starts_with("no process could be started for it"), "{message}");
}

/// One that runs stands for one that the kernel keeps although it is killed.
#[tokio::test]
async fn while_one_that_asked_has_not_ended_no_other_asks() {
    let (folder, program) = program("mkdir $(dirname $0)/asked; echo '[]'");
    let hangs = || Command::new("tail").args(["-f", "/dev/null"]).kill_on_drop(true).spawn();
    let mut asking = Some(hangs().unwrap());
    let message = ask(&program, PATIENCE, &mut asking).await.unwrap_err();
    assert!(message.contains("is killed and has not ended"), "{message}");
    assert!(!folder.path().join("asked").exists());
    asking.as_mut().unwrap().wait().await.unwrap();
    assert_eq!(ask(&program, PATIENCE, &mut asking).await, Ok(Vec::new()));
    // One that could be killed is no reason to wait.
    let (_folder, silent) = self::program("exec tail -f /dev/null");
    let hasty = Duration::from_millis(10);
    for _ in 0..2 {
        let message = ask(&silent, hasty, &mut asking).await.unwrap_err();
        assert_eq!(message, "a driver has not answered for 0 s");
        // A busy machine may take longer to end it than is waited for.
        asking.as_mut().unwrap().wait().await.unwrap();
    }
}

#[tokio::test]
async fn an_endless_answer_is_not_read_to_its_end() {
    let message = refused("exec yes '[]'", PATIENCE).await;
    assert!(message.starts_with("the reading") || message.contains("ended"), "{message}");
}

#[tokio::test]
async fn a_driver_that_fails_is_an_entry_and_is_asked_again_soon_and_then_later() {
    let reader = Reader::new(PathBuf::from("/nowhere/op-dbus"));
    for is_first in [true, false, false] {
        let asked = Instant::now();
        reader.state.lock().await.until = asked;
        let devices = reader.read().await;
        assert_eq!((devices.len(), devices[1].name.as_str()), (2, ""));
        assert!(devices[1].problem.as_ref().is_some_and(|problem| problem.contains("no process")));
        let until = reader.state.lock().await.until;
        match is_first {
            true => assert!(until <= Instant::now() + KEPT, "hidden for long by one failure"),
            false => assert!(until >= asked + KEPT_QUIET, "asked again and again"),
        }
    }
    let mut state = reader.state.lock().await;
    state.take(Ok(vec![card("cuda:0")]));
    state.take(Err("a failure".to_owned()));
    assert!(state.until <= Instant::now() + KEPT, "it had answered in between");
}

fn card(name: &str) -> Device {
    let provider = name.split(':').next().unwrap_or_default().to_owned();
    Device { name: name.to_owned(), provider, memory_total: Some(80), ..Device::default() }
}

#[test]
fn a_device_has_the_name_of_who_computes_on_it() {
    let known = || vec![card("cpu:0"), card("cuda:0"), card("cuda:1"), card("cuda:10")];
    let used = |computing: &[(&str, &str)]| {
        let owned = |(provider, name): &(&str, &str)| (provider.to_string(), name.to_string());
        let devices = with_use(known(), &computing.iter().map(owned).collect::<Vec<_>>());
        let told = |(device, in_use): (Device, bool)| {
            let mark = if in_use { "+" } else { "" };
            format!("{mark}{} {}", device.name, device.memory_total.unwrap_or(0))
        };
        devices.into_iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(used(&[]), ["cpu:0 80", "cuda:0 80", "cuda:1 80", "cuda:10 80"]);
    // Two workers of one device, and the CPU beside them.
    assert_eq!(
        used(&[("tensorrt", "tensorrt:1"), ("tensorrt", "tensorrt:1"), ("cpu", "cpu:0")]),
        ["+cpu:0 80", "cuda:0 80", "+tensorrt:1 80", "cuda:10 80"]
    );
    // Which of the cards another provider's device is, nobody knows.
    assert_eq!(used(&[("webgpu", "webgpu:0")])[4], "+webgpu:0 0");
}
