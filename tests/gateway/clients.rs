//! Clients that others wrote: OpenAI's and LangChain's, a parser of metrics, a prober of documented
//! interfaces, a browser.

use std::fs;

use serde_json::{Value, json};
use tokio::process::Command;

use super::Stage;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::gateway::Gateway;
use crate::harness::golden::{self, cosine, floats, plain_texts};
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually, fixture, needs};

tests! {
    openai_and_langchain_get_the_right_vectors: [Bus, Medium, PythonHttp],
    prometheus_reads_the_metrics: [Bus, Curl, PythonHttp],
    the_openapi_document_holds: [Bus, Curl, PythonHttp],
    the_page_shows_what_runs_and_ranks: [Bus, Medium, Chromium],
}

const KEY: &str = "Authorization: Bearer open-sesame";

/// A script of ours, with the packages that it needs.
fn script(name: &str) -> Command {
    let mut command = clean("python3");
    command.env("PYTHONPATH", needs::python_http_path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.arg(fixture(&format!("python/{name}")));
    command
}

async fn openai_and_langchain_get_the_right_vectors() -> Outcome {
    let stage = Stage::of(Setup::real("medium")?).await?;
    let texts = plain_texts()?;
    let mut command = script("http_clients.py");
    command.arg(stage.gateway.url("/v1"));
    let said = finish(command, &serde_json::to_string(&texts)?).await?.success()?;
    let said: Value = serde_json::from_str(&said)?;
    let own = stage.daemon.client().vectors(&texts).await?;
    let golden = golden::vectors("medium")?;
    for client in ["openai", "openai floats", "openai async", "langchain"] {
        let vectors = said[client].as_array().ok_or_else(|| format!("no {client}"))?;
        let vectors: Vec<Vec<f32>> = vectors.iter().filter_map(floats).collect();
        assert_eq!(vectors.len(), texts.len(), "{client}");
        for ((vector, own), golden) in vectors.iter().zip(&own).zip(&golden) {
            assert!(cosine(vector, own) >= 0.999_999, "{client}");
            // In bf16, where the CPU has it; see the README.
            assert!(cosine(vector, golden) >= 0.9998, "{client}");
        }
    }
    assert_eq!(said["models"][0], "default");
    assert_eq!(said["unknown model"], "NotFoundError");
    assert_eq!(said["foreign tokens"], "BadRequestError");
    assert!(said["foreign tokens said"].to_string().contains("of its own tokenizer"), "{said}");
    stage.end().await.map(drop)
}

/// What is told once the service has told it in time.
async fn scraped(stage: &Stage) -> Outcome<String> {
    let mut text = String::new();
    eventually("what the service tells", async || {
        let metrics = stage.gateway.get("/metrics").await?;
        assert!(metrics.headers["content-type"].starts_with("text/plain; version=0.0.4"));
        text = metrics.text;
        Ok(text.contains("\nop_dbus_up 1\n"))
    })
    .await?;
    Ok(text)
}

async fn prometheus_reads_the_metrics() -> Outcome {
    let stage = Stage::sim().await?;
    let texts = json!({"input": ["one", "two", "x".repeat(1000)]});
    stage.gateway.post("/v1/embeddings", &texts).await?.ok()?;
    let refused = stage
        .gateway
        .post("/embed", &json!({"inputs": "x".repeat(1000), "truncate": false}))
        .await?;
    assert_eq!(refused.status, 413);
    let metrics = scraped(&stage).await?;
    let said = finish(script("http_metrics.py"), &metrics).await?.success()?;
    let said: Value = serde_json::from_str(&said)?;
    let sample = |name: &str, labels: Value| {
        let samples = said.as_array().into_iter().flatten();
        let mut found = samples.filter(|sample| sample[0] == name && sample[1] == labels);
        found
            .next()
            .and_then(|sample| sample[2].as_f64())
            .ok_or_else(|| format!("no {name}{labels} in {metrics}"))
    };
    let none = || json!({});
    let client = stage.daemon.client();
    assert_eq!(sample("op_dbus_up", none())?, 1.0);
    for (name, key) in [
        ("embeddings_total", "texts"),
        ("batches_total", "batches"),
        ("truncated_texts_total", "truncated"),
        ("batch_tokens_total", "tokens"),
        ("batch_rows_total", "rows"),
        ("worker_restarts_total", "worker_restarts"),
        ("queue_texts", "queue_texts"),
        ("queue_tokens", "queue_tokens"),
    ] {
        assert_eq!(
            sample(&format!("op_dbus_{name}"), none())?,
            client.counter(key).await? as f64,
            "{name}"
        );
    }
    let calls = client.counter("calls").await? as f64;
    assert_eq!(sample("op_dbus_embedding_seconds_count", none())?, calls);
    assert_eq!(sample("op_dbus_embedding_seconds_bucket", json!({"le": "+Inf"}))?, calls);
    assert_eq!(sample("op_dbus_queue_seconds_count", none())?, calls);
    assert_eq!(sample("op_dbus_failures_total", json!({"kind": "too-long"}))?, 1.0);
    assert_eq!(sample("op_dbus_state", json!({"state": "ready"}))?, 1.0);
    // The simulator pads nothing.
    assert_eq!(sample("op_dbus_padding_ratio", none())?, 1.0);
    what_runs_is_told(&said)?;
    // The CPU is on every machine, and its memory is known everywhere.
    let mut samples = said.as_array().into_iter().flatten();
    let memory = samples.find(|sample| {
        sample[0] == "op_dbus_device_memory_size_bytes" && sample[1]["device"] == "cpu:0"
    });
    let devices = client.manager.list_devices().await?;
    let total = devices.iter().find_map(|device| device.get("memory_total")).ok_or("no memory")?;
    let total = u64::try_from(total.clone())?;
    assert_eq!(memory.and_then(|sample| sample[2].as_f64()), Some(total as f64));
    let route = json!({"route": "/v1/embeddings", "status": "200"});
    assert_eq!(sample("op_dbus_http_request_seconds_count", route)?, 1.0);
    let route = json!({"route": "/embed", "status": "413"});
    assert_eq!(sample("op_dbus_http_request_seconds_count", route)?, 1.0);
    stage.end().await.map(drop)
}

/// What the samples say of the provider and of the devices.
fn what_runs_is_told(said: &Value) -> Outcome {
    let of = |name: &str| -> Vec<&Value> {
        said.as_array().into_iter().flatten().filter(|sample| sample[0] == name).collect()
    };
    let [fallback] = of("op_dbus_fallback")[..] else { return Err("not one fallback".into()) };
    let labels = json!({"requested": "cpu", "active": "sim"});
    assert_eq!((&fallback[1], fallback[2].as_f64()), (&labels, Some(0.0)), "{fallback}");
    for device in of("op_dbus_device_utilisation_ratio") {
        assert!(device[2].as_f64().is_some_and(|busy| (0.0..=1.0).contains(&busy)), "{device}");
    }
    Ok(())
}

async fn the_openapi_document_holds() -> Outcome {
    let stage = Stage::sim().await?;
    holds(&stage, &stage.gateway, &[]).await?;
    fs::write(stage.setup.path("api-key"), "open-sesame")?;
    let locked = Gateway::with_key(&stage.bus, &stage.setup, &stage.setup.path("")).await?;
    holds(&stage, &locked, &["--phases", "fuzzing", "--header", KEY]).await?;
    locked.stop().await?;
    stage.end().await.map(drop)
}

/// A gateway keeps to its document, and each route that takes a body does some of what is asked: who refuses
/// everything keeps to it, too.
async fn holds(stage: &Stage, gateway: &Gateway, words: &[&str]) -> Outcome {
    // More than come from `GET /`, which counts as well.
    const LEAST: u64 = 5;
    let mut command = clean("python3");
    command.env("PYTHONPATH", needs::python_http_path()).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(stage.setup.path(""));
    // What a model was trained for is in no document: such a request may be refused.
    let config = "[checks]\npositive_data_acceptance.expected-statuses = [200, 400, 404, 413]\n";
    fs::write(stage.setup.path("schemathesis.toml"), config)?;
    command.args(["-m", "schemathesis.cli", "--config-file", "schemathesis.toml"]);
    command.args(["run", &gateway.url("/openapi.json")]).args(words);
    command.args(["--checks", "all", "--max-examples", "25", "--seed", "1", "--no-color"]);
    command.args(["--generation-deterministic", "--suppress-health-check", "all"]);
    let ended = finish(command, "").await?;
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    println!("{}", ended.stdout);
    let metrics = gateway.curl("/metrics", &["-H", KEY], "").await?.text;
    for route in ["/", "/v1/embeddings", "/embed", "/similarity", "/rerank", "/tokenize", "/add"] {
        let labels = format!("{{route=\"{route}\",status=\"200\"}} ");
        let sample = format!("op_dbus_http_request_seconds_count{labels}");
        let done = metrics.lines().find_map(|line| line.strip_prefix(&sample)?.parse::<u64>().ok());
        assert!(done >= Some(LEAST), "{route}: {done:?} in {metrics}");
    }
    Ok(())
}

async fn the_page_shows_what_runs_and_ranks() -> Outcome {
    let stage = Stage::of(Setup::real("medium")?).await?;
    fs::write(stage.setup.path("api-key"), "open-sesame")?;
    let locked = Gateway::with_key(&stage.bus, &stage.setup, &stage.setup.path("")).await?;
    let picture = stage.setup.path("page.png");
    let mut command = script("http_page.py");
    command.arg(stage.gateway.url("/")).arg(&picture).arg(locked.url("/"));
    command.env("HOME", stage.setup.path(""));
    let said = finish(command, "").await?.success()?;
    let said: Value = serde_json::from_str(&said)?;
    assert_eq!(said["state"], "ready");
    assert!(said["about"].to_string().contains("all-MiniLM-L6-v2"), "{said}");
    assert_eq!(said["errors"], json!([]), "the browser complained");
    let first = said["ranks"][0].as_str().unwrap_or_default();
    assert!(first.contains("/var/lib/docker"), "{said}");
    assert_eq!(said["ranks"].as_array().map(Vec::len), Some(5));
    assert!(said["workers"].as_u64() >= Some(1) && said["plotted"] == true, "{said}");
    // Half a minute without a reading is half a minute of the plot.
    assert!(said["gap"].as_u64().is_some_and(|gap| (30..60).contains(&gap)), "{said}");
    assert_eq!(said["without a key"], "");
    assert!(said["wrong key"].to_string().contains("key"), "{said}");
    locked.stop().await?;
    if let Some(folder) = std::env::var_os("OP_DBUS_TEST_PICTURES") {
        fs::copy(&picture, std::path::Path::new(&folder).join("page.png"))?;
    }
    assert!(fs::metadata(&picture)?.len() > 10_000);
    stage.end().await.map(drop)
}
