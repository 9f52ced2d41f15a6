//! `op-dbus embed` with many texts, which go by file descriptors where the service takes them.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::Pid;
use op_dbus_api::ErrorName;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use zbus::{OwnedVariant, Variant};

use super::embed;
use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::command::{clean, cli, cli_with_input, finish};
use crate::harness::daemon::Setup;
use crate::harness::files::content;
use crate::harness::needs::{op_dbus, python_packages};
use crate::harness::process::peak;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, within};

tests! {
    the_command_holds_neither_texts_nor_vectors: [Bus],
    the_command_goes_on_where_streams_are_taken: [Bus],
    the_command_writes_every_encoding: [Bus],
    numpy_reads_every_encoding: [Bus, PythonPackages],
    the_command_knows_older_services: [Bus],
}

/// What `op-dbus embed` has used when all of a long input has been embedded, and what it writes.
async fn the_command_holds_neither_texts_nor_vectors() -> Outcome {
    const LINES: usize = 100_000;
    // The program itself takes some 20 MiB; the vectors would be 150 MiB.
    const PEAK_MAX: u64 = 48 << 20;
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let output = setup.path("vectors.npy");
    let mut command = clean(op_dbus());
    command.args(["embed", "--npy", "--bus", bus.address(), "--output"]).arg(&output);
    let mut child = command.stdin(Stdio::piped()).kill_on_drop(true).spawn()?;
    let pid = Pid::from_raw(i32::try_from(child.id().ok_or("it has ended")?)?);
    let mut stdin = child.stdin.take().ok_or("no standard input")?;
    let lines: String =
        (0..LINES).map(|n| format!("line {n} of a log on standard input\n")).collect();
    stdin.write_all(lines.as_bytes()).await?;
    // It waits for more meanwhile, so its memory can be looked at.
    daemon.client().counted("texts", LINES as u64).await?;
    let peak = peak(pid)?;
    drop(stdin);
    assert!(within("the end of the command", child.wait()).await??.success());
    println!("{peak} bytes for {LINES} lines");
    assert!(peak < PEAK_MAX, "{peak} bytes");
    let written = File::open(&output)?;
    assert_eq!(written.metadata()?.len(), 128 + (LINES * 384 * 4) as u64);
    for line in [0, LINES / 2, LINES - 1] {
        const ROW: usize = 384 * 4;
        let mut row = [0; ROW];
        written.read_exact_at(&mut row, 128 + (line * ROW) as u64)?;
        let text = format!("line {line} of a log on standard input");
        let vector = daemon.client().vectors(&[text]).await?.concat();
        assert_eq!(
            row.as_slice(),
            vector.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()
        );
    }
    daemon.stop().await
}

/// The user has no place for a stream left: the command's texts go the way of all others.
async fn the_command_goes_on_where_streams_are_taken() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = Client::on(&bus).await?;
    let (source, writer) = std::io::pipe()?;
    let path = setup.path("lines");
    std::fs::write(&path, (0..5000).map(|n| format!("{n}\n")).collect::<String>())?;
    let calls = (0..5).map(|_| Box::pin(embed(&client, &source, Options::new())));
    // The fifth is refused while the others wait for the pipe.
    let (first, _, rest) = futures_util::future::select_all(calls).await;
    refused(first, ErrorName::QuotaExceeded)?;
    let arguments = ["embed", "--csv", "--file", &path.display().to_string()];
    let lines = cli(&bus, &arguments).await?.success()?;
    assert_eq!(lines.lines().count(), 5000);
    drop(writer);
    for call in rest {
        assert_eq!(call.await?.1, 0);
    }
    daemon.stop().await
}

/// What the service writes into a memfd of that kind, header and all, by calls of both ways; and numbers
/// of that kind as text, the same in each form of it.
async fn the_command_writes_every_encoding() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let path = setup.path("lines");
    std::fs::write(&path, (0..3000).map(|n| format!("line {n}\n")).collect::<String>())?;
    let (lines, output) = (path.display().to_string(), setup.path("out").display().to_string());
    for encoding in ["f32", "f16", "i8", "b1"] {
        let options = Options::from([("encoding", encoding.into()), ("format", "npy".into())]);
        let (memfd, ..) = embed(daemon.client(), File::open(&path)?, options).await?;
        let expected = content(memfd)?;
        let command = ["embed", "--encoding", encoding, "--file", &lines, "--output", &output];
        cli(&bus, &[&command[..], &["--npy"]].concat()).await?.success()?;
        assert_eq!(std::fs::read(&output)?, expected, "{encoding}");
        cli(&bus, &[&command[..], &["--csv"]].concat()).await?.success()?;
        let written = std::fs::read_to_string(&output)?;
        assert_eq!(written.lines().count(), 3000);
        let bytes: Option<Vec<u8>> = match encoding {
            "i8" => Some(expected[128..][..384].to_vec()),
            "b1" => Some(expected[128..][..48].to_vec()),
            _ => None,
        };
        if let Some(bytes) = bytes {
            let read = written.lines().next().unwrap_or_default().split(',');
            let read = read.map(|number| Ok(number.parse::<i16>()?.to_le_bytes()[0]));
            assert_eq!(read.collect::<Outcome<Vec<u8>>>()?, bytes, "{encoding}");
        }
        cli(&bus, &command).await?.success()?;
        let plain = std::fs::read_to_string(&output)?;
        assert!(plain == written.replace(',', " "), "{encoding}: {:?}", plain.lines().next());
        cli(&bus, &[&command[..], &["--json"]].concat()).await?.success()?;
        let objects = std::fs::read_to_string(&output)?;
        assert_eq!(objects.lines().count(), 3000);
        // The first and the last, which are of two calls.
        let pairs = objects.lines().zip(written.lines()).enumerate().step_by(2999);
        for (index, (object, row)) in pairs {
            let mut object: Value = serde_json::from_str(object)?;
            assert_eq!(object["index"], index);
            let vector: Vec<f32> = serde_json::from_value(object["vector"].take())?;
            let row = row.split(',').map(str::parse::<f32>).collect::<Result<Vec<_>, _>>()?;
            assert_eq!(vector, row, "{encoding}");
        }
        let none = ["embed", "--npy", "--encoding", encoding, "--file", "/dev/null"];
        cli(&bus, &[&none[..], &["--output", &output]].concat()).await?.success()?;
        let header = String::from_utf8_lossy(&std::fs::read(&output)?).into_owned();
        let columns = if encoding == "b1" { 48 } else { 384 };
        assert!(header.contains(&format!("'shape': (0, {columns})")), "{header}");
    }
    daemon.stop().await
}

/// What the command writes, and the service as well: elements, shape, and the bytes of the first row.
async fn numpy_reads_every_encoding() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let path = setup.path("lines");
    let lines = path.display().to_string();
    let mut load = clean(python_packages());
    load.arg("-Werror").arg(fixture("python/npy.py"));
    let mut expected = Vec::new();
    for (encoding, element, columns) in
        [("f32", "<f4", 384), ("f16", "<f2", 384), ("i8", "|i1", 384), ("b1", "|u1", 48)]
    {
        let options = || Options::from([("encoding", encoding.into())]);
        let row = client.embedder.embed_packed(&["one"], options()).await?.0.into_vec();
        for (rows, texts) in [(2_usize, "one\ntwo\n"), (0, "")] {
            std::fs::write(&path, texts)?;
            let output = setup.path(&format!("{encoding}-{rows}.npy")).display().to_string();
            let command = ["embed", "--npy", "--encoding", encoding, "--file", &lines];
            cli(&bus, &[&command[..], &["--output", &output]].concat()).await?.success()?;
            let mut npy = options();
            npy.insert("format", "npy".into());
            let (memfd, ..) = embed(client, File::open(&path)?, npy).await?;
            assert_eq!(std::fs::read(&output)?, content(memfd)?, "{encoding}, {rows} rows");
            load.arg(&output);
            expected.push(json!([element, [rows, columns], row[..row.len() * rows.min(1)]]));
        }
    }
    let said: Value = serde_json::from_str(&finish(load, "").await?.success()?)?;
    assert_eq!(said, Value::from(expected));
    daemon.stop().await
}

/// A service from before `EmbedFromFd`, with vectors of one dimension: the length of each text.
struct Older {
    calls: Arc<Mutex<Vec<usize>>>,
}

#[zbus::interface(name = "org.opdbus.Embedding1.Embedder")]
impl Older {
    async fn embed_packed(
        &self,
        texts: Vec<String>,
        _options: HashMap<String, OwnedVariant>,
    ) -> (Vec<u8>, u32, u32, HashMap<&'static str, Variant<'static>>) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(texts.len());
        let bytes = texts.iter().flat_map(|text| (text.len() as f32).to_le_bytes()).collect();
        let texts = texts.len() as u32;
        let info = HashMap::from([
            ("space", "s-f32".into()),
            ("level", "low".into()),
            ("model", "m".into()),
            ("dimensions", 1_u32.into()),
            ("provider", "cpu".into()),
            ("device", "cpu:0".into()),
            ("precision", "f32".into()),
            ("tokens", u64::from(3 * texts).into()),
            ("truncated", Vec::<u32>::new().into()),
            ("cached", 0_u32.into()),
            ("queue_us", 1_u64.into()),
            ("compute_us", 2_u64.into()),
        ]);
        (bytes, texts, 1, info)
    }

    #[zbus(property)]
    fn texts_per_call_max(&self) -> u32 {
        4096
    }

    #[zbus(property)]
    fn text_bytes_max(&self) -> u32 {
        1 << 20
    }

    #[zbus(property)]
    fn inline_reply_bytes_max(&self) -> u32 {
        16 << 20
    }
}

async fn the_command_knows_older_services() -> Outcome {
    let bus = PrivateBus::start().await?;
    let calls = Arc::<Mutex<Vec<usize>>>::default();
    let _service = zbus::connection::Builder::address(bus.address())
        .serve_at(op_dbus_api::ROOT_PATH, Older { calls: calls.clone() })
        .name(op_dbus_api::BUS_NAME)
        .build()
        .await?;
    let input: String = (0..6000).map(|n| "x".repeat(n % 10) + "\n").collect();
    let out = cli_with_input(&bus, &["embed", "--csv"], &input).await?.success()?;
    assert!(out.lines().enumerate().all(|(n, length)| length == (n % 10).to_string()), "{out}");
    assert_eq!(out.lines().count(), 6000);
    let calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(calls.iter().all(|texts| *texts <= 256) && calls.contains(&256), "{calls:?}");
    Ok(())
}
