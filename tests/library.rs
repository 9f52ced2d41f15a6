//! The engine as a library: its examples, run as programs of their own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::bus::PrivateBus;
use crate::harness::client::Options;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::files::{copy_folder, numbers};
use crate::harness::golden::{self, cosine, distance};
use crate::harness::needs::{self, Need};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, repository};

tests! {
    gpu_demo_compares_what_computes_here: [Low, LibraryExamples],
    the_cpu_computes_in_the_library_of_a_provider_that_does_not: [Low, OpenVino, NoGraphics, LibraryExamples],
    gpu_optimization_tells_what_the_workers_did: [Low, LibraryExamples],
    onnx_runtime_tells_nobody_that_it_runs: [Low, Runtime, LibraryExamples],
    full_batches_tells_how_far_a_device_is_kept_busy: [LibraryExamples],
    bulk_writes_the_vectors_of_the_references: [Low, LibraryExamples],
    a_text_has_the_prompt_that_the_service_gives_it: [Bus, LibraryExamples],
    the_library_refuses_in_one_sentence: [LibraryExamples],
    every_example_of_a_crate_is_run: [],
}

/// Runs an example with the model of level `low`, and a cache of its own.
async fn run(
    example: &str,
    first: &[&Path],
    last: &[&str],
    input: impl AsRef<[u8]>,
) -> Outcome<String> {
    let cache = TempDir::new()?;
    let mut command = clean(needs::example(example));
    command.args(first).arg(needs::store().join("models")).arg("low").args(last);
    command.env("XDG_CACHE_HOME", cache.path());
    finish(command, input).await?.success()
}

async fn gpu_demo_compares_what_computes_here() -> Outcome {
    let said = run("gpu_demo", &[], &[], "").await?;
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("paraphrase-MiniLM-L3-v2 on cpu:0: the reference"));
    let mut seen = Vec::new();
    for line in lines {
        let (provider, result) = line.split_once(": ").ok_or("a line without a provider")?;
        seen.push(provider);
        if let Some(reason) = result.strip_prefix("not compared: ") {
            // The example is one process, which takes one runtime; OpenVINO has another.
            let other = provider == "openvino" && reason.starts_with("this process already runs");
            if other {
                let said = run("gpu_demo", &[], &[provider], "").await?;
                assert!(
                    said.lines().count() == 2 && said.contains("openvino:0 in f32, "),
                    "{said}"
                );
            }
            assert!(other || reason.starts_with(provider) && reason.len() > 20, "{line}");
            assert!(provider != "cpu", "{line}");
            assert!(provider != "ggml" || Need::Ggml.missing().is_some(), "{line}");
        } else {
            let (_, cosine) = result.rsplit_once("cosine ").ok_or("a line without a cosine")?;
            assert!(cosine.parse::<f64>()? > 0.9995, "{line}");
            assert!(result.contains(" in f32, "), "{line}");
        }
    }
    assert!(seen.contains(&"cpu") && seen.contains(&"cuda") && seen.contains(&"ggml"), "{said}");
    Ok(())
}

/// One process has one ONNX Runtime, and OpenVINO's is not the CPU's.
async fn the_cpu_computes_in_the_library_of_a_provider_that_does_not() -> Outcome {
    let said = run("fallback", &[], &["openvino", "device_type=GPU"], "").await?;
    let (first, reason) = said.split_once('\n').ok_or("one line at most")?;
    assert_eq!(first, "384 numbers on cpu:0");
    assert!(reason.starts_with("openvino does not work here: "), "{reason}");
    Ok(())
}

async fn gpu_optimization_tells_what_the_workers_did() -> Outcome {
    let said = run("gpu_optimization", &[], &[], "").await?;
    let mut lines = said.lines();
    let header = "workers  batch tokens  batches  rows/batch  padding  busy  texts/s";
    assert_eq!(lines.next(), Some(header));
    let mut batches = Vec::new();
    for line in lines.by_ref().take(6) {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let number = |at: usize| columns[at].trim_end_matches('%').parse::<f64>();
        let (each, rows, padding) = (number(2)?, number(3)?, number(4)?);
        // 400 texts were embedded, and the native engine pads nothing.
        assert!((each * rows - 400.0).abs() < each * 0.06 && padding == 0.0, "{line}");
        assert!(number(5)? > 0.0 && number(6)? > 0.0, "{line}");
        batches.push(each);
    }
    assert_eq!(batches.len(), 6, "{said}");
    for budgets in batches.chunks(3) {
        assert!(budgets[0] > budgets[1] && budgets[1] > budgets[2], "{said}");
    }
    let header = "I/O binding  buffers reused  zero copy  arena bytes  texts/s";
    assert_eq!(lines.next(), Some(header));
    let [off, on]: [&str; 2] =
        lines.collect::<Vec<_>>().try_into().map_err(|_| format!("two lines more: {said}"))?;
    if Need::Runtime.missing().is_some() {
        assert!(off.starts_with("not here: ") && off == on, "{said}");
        return Ok(());
    }
    let (off, on): (Vec<_>, Vec<_>) =
        (off.split_whitespace().collect(), on.split_whitespace().collect());
    let ratio = |cell: &str| cell.trim_end_matches('%').parse::<f64>();
    // Without it results are copied out of what ONNX Runtime has made, and nothing is kept.
    assert_eq!(off[..2], ["off", "–"], "{said}");
    assert!(0.0 < ratio(off[2])? && ratio(off[2])? < 100.0, "{said}");
    assert_eq!([on[0], on[2]], ["on", "100.0%"], "{said}");
    // 400 texts have a few dozen lengths at most.
    assert!(ratio(on[1])? > 90.0, "{said}");
    // The CPU has no arena.
    assert_eq!([off[3], on[3]], ["–"; 2], "{said}");
    Ok(())
}

async fn onnx_runtime_tells_nobody_that_it_runs() -> Outcome {
    let home = TempDir::new()?;
    let mut command = clean(needs::example("gpu_optimization"));
    command.arg(needs::store().join("models")).arg("low");
    command.env("HOME", home.path()).env("TMPDIR", home.path());
    let said = finish(command, "").await?.success()?;
    assert!(!said.contains("not here"), "{said}");
    // Where its telemetry keeps an identifier of the machine and what is to be sent, and where a session.
    for kept in [".cache/Microsoft", ".ses"] {
        assert!(!home.path().join(kept).exists(), "{kept}");
    }
    Ok(())
}

async fn full_batches_tells_how_far_a_device_is_kept_busy() -> Outcome {
    let mut command = clean(needs::example("full_batches"));
    command.arg("1");
    let said = finish(command, "").await?.success()?;
    let mut of = Vec::new();
    for line in said.lines() {
        let (what, busy) = line.split_once(" texts/s  device busy ").ok_or("another line")?;
        let (what, rate) = what.trim_end().rsplit_once(' ').ok_or("no number")?;
        let busy = busy.trim_end_matches('%').trim().parse::<f64>()?;
        assert!(rate.parse::<f64>()? > 0.0 && 0.0 < busy && busy <= 100.0, "{line}");
        of.push(what.trim_end());
    }
    assert_eq!(of, ["in process", "one by one", "begun"].repeat(3), "{said}");
    Ok(())
}

async fn bulk_writes_the_vectors_of_the_references() -> Outcome {
    let golden = golden::texts()?.into_iter().zip(golden::vectors("low")?);
    let expected: Vec<_> = golden.filter(|(text, _)| !text.text.contains('\n')).collect();
    // More than one call.
    let lines = expected.iter().map(|(text, _)| text.text.as_str()).cycle().take(600);
    let lines: Vec<&str> = lines.collect();
    let input =
        [lines.join("\n").as_bytes(), b"\ncaf\xe9\r\n", "caf\u{fffd}\n".as_bytes()].concat();
    let folder = TempDir::new()?;
    // No more than a line need be UTF-8.
    let output = folder.path().join(OsStr::from_bytes(b"vectors\xff.f32"));
    let said = run("bulk", &[&output], &[], input).await?;
    assert!(said.starts_with("602 vectors of 384 numbers on cpu:0\n"), "{said}");
    let bytes = fs::read(output)?;
    assert_eq!(bytes.len(), 602 * 384 * 4);
    let vectors = numbers(&bytes);
    let (golden, others) = vectors.split_at(600 * 384);
    for (vector, (text, reference)) in golden.chunks(384).zip(expected.iter().cycle()) {
        let cosine = cosine(vector, reference);
        assert!(cosine > 0.9995, "{}: {cosine}", text.name);
    }
    assert!(distance(&others[..384], &others[384..]) <= 1e-5);
    Ok(())
}

async fn a_text_has_the_prompt_that_the_service_gives_it() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::with_store()?.setting("cpu_engine", "native").setting("model", "asks");
    let setup = setup.setting("batch_tokens_max", "512");
    let (folder, output) = (setup.path("source"), setup.path("vectors.f32"));
    copy_folder(&fixture("golden/tiny-bert"), &folder)?;
    let prompts = json!({"prompts": {"query": "query: "}, "default_prompt_name": "query"});
    fs::write(folder.join("config_sentence_transformers.json"), prompts.to_string())?;
    setup.import(&folder, &["--name", "asks"]).await?.success()?;

    let daemon = setup.ready(&bus).await?;
    let served = daemon.client().vectors(&["why?"]).await?;
    let none = Options::from([("prompt", "".into())]);
    let plain = daemon.client().packed(&["why?"], none).await?.vectors;
    daemon.stop().await?;

    let mut command = clean(needs::example("bulk"));
    command.args([&output, &setup.path("models")]).arg("asks");
    command.env("XDG_CACHE_HOME", setup.path("cache"));
    finish(command, "why?\n").await?.success()?;
    let own = numbers(&fs::read(output)?);
    assert!(distance(&own, &served[0]) <= 1e-5);
    assert!(distance(&own, &plain[0]) > 1e-2);
    Ok(())
}

async fn the_library_refuses_in_one_sentence() -> Outcome {
    let empty = TempDir::new()?;
    let mut command = clean(needs::example("gpu_optimization"));
    command.arg(empty.path().join("models")).args(["low", "cuda"]);
    let refused = finish(command, "").await?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("paraphrase-MiniLM-L3-v2"), "{}", refused.stderr);
    assert!(refused.stderr.contains("op-dbus models pull"), "{}", refused.stderr);
    Ok(())
}

async fn every_example_of_a_crate_is_run() -> Outcome {
    let tests = fs::read_to_string(fixture("library.rs"))?;
    let tests = tests + &fs::read_to_string(fixture("examples.rs"))?;
    let mut seen = 0;
    for entry in repository().join("crates").read_dir()? {
        let Ok(examples) = entry?.path().join("examples").read_dir() else { continue };
        for example in examples {
            let path = example?.path();
            let name = path.file_stem().unwrap_or_default().display();
            let runs = [format!("example(\"{name}\")"), format!("run(\"{name}\", ")];
            assert!(runs.iter().any(|run| tests.contains(run)), "no test runs {}", path.display());
            seen += 1;
        }
    }
    assert_ne!(seen, 0);
    Ok(())
}
