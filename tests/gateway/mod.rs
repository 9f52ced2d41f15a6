//! The HTTP gateway, asked as its clients ask it.

mod clients;
mod journal;
mod leaving;
mod left;
mod limits;
mod matryoshka;
mod models;
mod passing;
mod ready;
mod refusals;
mod replies;
mod starting;
mod tei;
mod waiting;
mod weight;

use std::fs;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::Outcome;
use crate::harness::bus::PrivateBus;
use crate::harness::client::Options;
use crate::harness::daemon::{Daemon, LOG_ALL, Setup};
use crate::harness::gateway::{Answer, Gateway};
use crate::harness::golden::{cosine, floats, plain_texts};
use crate::harness::registry::{Test, tests};

/// The tests of all modules.
pub fn all() -> Vec<Test> {
    let modules = [
        tests(),
        clients::tests(),
        journal::tests(),
        leaving::tests(),
        left::tests(),
        limits::tests(),
        matryoshka::tests(),
        models::tests(),
        passing::tests(),
        ready::tests(),
        refusals::tests(),
        replies::tests(),
        starting::tests(),
        tei::tests(),
        waiting::tests(),
        weight::tests(),
    ];
    modules.into_iter().flatten().collect()
}

tests! {
    embeddings_are_those_of_the_bus: [Bus, Curl],
    tokens_are_embedded: [Bus, Curl],
    texts_and_tokens_are_embedded_together: [Bus, Curl],
    cut_texts_are_told: [Bus, Curl],
    a_large_request_is_split: [Bus, Curl],
    what_is_cached_is_told: [Bus, Curl],
    more_is_tokenized_than_one_call_takes: [Bus, Curl, Low],
    routes_of_text_embeddings_inference: [Bus, Curl, Medium],
    a_text_that_is_added_is_embedded: [Bus, Curl],
    mistakes_have_a_status_and_one_sentence: [Bus, Curl],
    texts_stay_out_of_the_log: [Bus, Curl],
}

/// A bus, a daemon and a gateway.
pub struct Stage {
    // Kept until the others have ended.
    pub bus: PrivateBus,
    pub setup: Setup,
    pub daemon: Daemon,
    pub gateway: Gateway,
}

impl Stage {
    /// With simulated vectors.
    pub async fn sim() -> Outcome<Self> {
        Self::of(Setup::sim()?).await
    }

    /// With these settings.
    pub async fn of(setup: Setup) -> Outcome<Self> {
        let (bus, setup, daemon) = setup.alone().await?;
        let gateway = Gateway::start(&bus, &setup).await?;
        Ok(Self { bus, setup, daemon, gateway })
    }

    /// Ends gateway and daemon, which must end well.
    pub async fn end(self) -> Outcome<String> {
        let log = self.gateway.stop().await?;
        self.daemon.stop().await?;
        Ok(log)
    }
}

/// The vectors of an answer of `/v1/embeddings`.
fn vectors(body: &Value) -> Outcome<Vec<Vec<f32>>> {
    let data = body["data"].as_array().ok_or_else(|| format!("no data: {body}"))?;
    for (index, datum) in data.iter().enumerate() {
        assert_eq!(datum["index"], index);
    }
    Ok(data
        .iter()
        .map(|datum| floats(&datum["embedding"]))
        .collect::<Option<_>>()
        .ok_or("no numbers")?)
}

async fn embeddings_are_those_of_the_bus() -> Outcome {
    let stage = Stage::sim().await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    let texts = plain_texts()?;
    let body = gateway.post("/v1/embeddings", &json!({"input": texts})).await?.ok()?;
    let expected = client.packed(&texts, Options::new()).await?;
    assert_eq!(vectors(&body)?, expected.vectors);
    assert_eq!(body["usage"]["prompt_tokens"], expected.info::<u64>("tokens")?);
    assert_eq!(body["usage"]["total_tokens"], body["usage"]["prompt_tokens"]);
    assert_eq!(body["op_dbus"]["vector_space"], expected.info::<String>("space")?);
    assert_eq!(body["model"], client.embedder.model().await?);

    let one = json!({"input": "one", "encoding_format": "base64", "user": "somebody"});
    let answer = gateway.post("/v1/embeddings", &one).await?;
    // Also for who speaks HTTP/1.0, and would take half of a reply for a whole one.
    assert_eq!(answer.headers.get("content-length"), Some(&answer.text.len().to_string()));
    let body = answer.ok()?;
    let encoded = body["data"][0]["embedding"].as_str().ok_or("no text")?;
    // 384 numbers of 4 bytes.
    assert_eq!(encoded.len(), 2048);
    stage.end().await.map(drop)
}

async fn texts_and_tokens_are_embedded_together() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    let long = "x".repeat(1000);
    let expected = stage.daemon.client().vectors(&["one", "o", &long, "two"]).await?;
    let input = json!([[111, 110, 101], "o", long, [116, 119, 111]]);
    let body = gateway.post("/v1/embeddings", &json!({"input": input})).await?.ok()?;
    assert_eq!(vectors(&body)?, expected);
    assert_eq!(body["op_dbus"]["truncated"], json!([2]));
    for path in ["/embed", "/"] {
        let rows = gateway.post(path, &json!({"inputs": input})).await?.ok()?;
        let rows: Vec<_> = rows.as_array().ok_or("no list")?.iter().filter_map(floats).collect();
        assert_eq!(rows, expected, "{path}");
    }
    let zero = gateway.post("/embed", &json!({"inputs": [[111], "o", "t\0wo"]})).await?;
    assert!(zero.status == 400 && zero.text.contains("text 2 has the character"), "{}", zero.text);
    stage.end().await.map(drop)
}

async fn tokens_are_embedded() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    let expected = stage.daemon.client().vectors(&["one", "o"]).await?;
    for (input, count) in [(json!([111, 110, 101]), 1), (json!([[111, 110, 101], [111]]), 2)] {
        let body = gateway.post("/v1/embeddings", &json!({"input": input})).await?.ok()?;
        assert_eq!(vectors(&body)?, expected[..count]);
    }
    // What a client with OpenAI's own tokenizer sends.
    let foreign = gateway.post("/v1/embeddings", &json!({"input": [[9906, 1917]]})).await?;
    assert_eq!(foreign.status, 400);
    let message = foreign.json()?["error"]["message"].to_string();
    assert!(message.contains("token id 9906") && message.contains("below 258"), "{message}");
    stage.end().await.map(drop)
}

async fn cut_texts_are_told() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    let long = "x".repeat(1000);
    let input = json!({"input": ["short", long, "short", long]});
    let body = gateway.post("/v1/embeddings", &input).await?.ok()?;
    assert_eq!(body["op_dbus"]["truncated"], json!([1, 3]));
    let cut = gateway.post("/embed", &json!({"inputs": ["short", long]})).await?;
    assert_eq!(cut.headers.get("op-dbus-truncated").map(String::as_str), Some("1"));
    stage.end().await.map(drop)
}

async fn a_large_request_is_split() -> Outcome {
    let stage = Stage::sim().await?;
    let texts: Vec<String> = (0..2500).map(|n| format!("text {n}")).collect();
    let mut cut = texts.clone();
    cut[2000] = "x".repeat(1000);
    let before = stage.daemon.client().counter("calls").await?;
    let body = stage.gateway.post("/v1/embeddings", &json!({"input": cut})).await?.ok()?;
    assert_eq!(stage.daemon.client().counter("calls").await? - before, 3);
    assert_eq!(body["op_dbus"]["truncated"], json!([2000]));
    let found = vectors(&body)?;
    assert_eq!(found.len(), 2500);
    let some = [0, 1023, 1024, 2047, 2048, 2499];
    let expected = stage.daemon.client().vectors(&some.map(|n| &texts[n])).await?;
    assert_eq!(some.map(|n| found[n].clone()).to_vec(), expected);
    stage.end().await.map(drop)
}

async fn what_is_cached_is_told() -> Outcome {
    let stage = Stage::of(Setup::sim()?.setting("cache_bytes", "1000000")).await?;
    let gateway = &stage.gateway;
    let cached = |answer: &Answer| answer.headers.get("op-dbus-cached").cloned();
    let first = gateway.post("/v1/embeddings", &json!({"input": ["one", "two"]})).await?.ok()?;
    let more = json!({"input": ["two", "three", "one"]});
    let more = gateway.post("/v1/embeddings", &more).await?.ok()?;
    assert_eq!((&first["op_dbus"]["cached"], &more["op_dbus"]["cached"]), (&json!(0), &json!(2)));
    let again = gateway.post("/v1/embeddings", &json!({"input": ["one", "two"]})).await?.ok()?;
    assert_eq!(again["usage"], first["usage"], "tokens do not depend on the cache");
    let text = json!({"text": "four"});
    for cached in [false, true] {
        assert_eq!(gateway.post("/add", &text).await?.ok()?["cached"], cached);
    }
    let rows = json!({"inputs": ["five", "six"]});
    for told in ["0", "2"] {
        assert_eq!(cached(&gateway.post("/embed", &rows).await?).as_deref(), Some(told));
    }
    let ranks = json!({"query": "seven", "texts": ["eight", "seven"]});
    for told in ["0", "3"] {
        assert_eq!(cached(&gateway.post("/rerank", &ranks).await?).as_deref(), Some(told));
    }
    stage.end().await.map(drop)
}

async fn more_is_tokenized_than_one_call_takes() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let command = setup.command(&bus)?;
    let settings = fs::read_to_string(setup.config_file())?;
    let prompt = "word ".repeat(500);
    let table = format!("[models.paraphrase-MiniLM-L3-v2]\nprompts = {{ long = {prompt:?} }}\n");
    fs::write(setup.config_file(), format!("{settings}\n{table}"))?;
    let daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let gateway = Gateway::start(&bus, &setup).await?;
    let mut texts = vec!["a ".repeat(200); 3000];
    texts[2] = "b".to_owned();
    texts[999] = "c".to_owned();
    texts[2999] = "d".to_owned();
    // 1.2 MB of texts, and 2.5 MB with the prompt before each.
    for (count, prompt) in [(3000, None), (1000, Some("long"))] {
        let ask = |texts: &[String]| {
            let body = json!({"inputs": texts, "prompt_name": prompt});
            let gateway = &gateway;
            async move { gateway.post("/tokenize", &body).await?.ok() }
        };
        let all = ask(&texts[..count]).await?;
        assert_eq!(all.as_array().map(Vec::len), Some(count));
        for place in [0, 2, 500, 999, count - 1] {
            assert_eq!(all[place], ask(&texts[place..=place]).await?[0], "{place} {prompt:?}");
        }
    }
    texts[1700] = "e".repeat((1 << 20) + 1);
    let refused = gateway.post("/tokenize", &json!({"inputs": texts})).await?;
    assert_eq!(refused.status, 413);
    assert!(
        sentence(&refused, "/")?.starts_with("the size of text 1700 in bytes"),
        "{}",
        refused.text
    );
    gateway.stop().await?;
    daemon.stop().await
}

async fn routes_of_text_embeddings_inference() -> Outcome {
    let stage = Stage::of(Setup::real("medium")?).await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    let texts = ["disk full", "no space left on device", "the sun shines"];
    let expected = client.vectors(&texts).await?;
    let rows = gateway.post("/embed", &json!({"inputs": texts})).await?.ok()?;
    let rows: Vec<Vec<f32>> = rows.as_array().ok_or("no list")?.iter().filter_map(floats).collect();
    assert_eq!(rows, expected);

    let similarity = json!({"inputs": {"source_sentence": texts[0], "sentences": &texts[1..]}});
    let cosines =
        floats(&gateway.post("/similarity", &similarity).await?.ok()?).ok_or("no list")?;
    let ranks = json!({"query": texts[0], "texts": [texts[2], texts[1]], "return_text": true});
    let ranks = gateway.post("/rerank", &ranks).await?.ok()?;
    assert_eq!((&ranks[0]["index"], &ranks[0]["text"]), (&json!(1), &json!(texts[1])));
    for (found, row) in [(cosines[0], 1), (cosines[1], 2)] {
        let cosine: f64 = cosine(&expected[0], &expected[row]);
        let off: f64 = cosine - f64::from(found);
        assert!(off.abs() < 1e-6, "{cosine} {found}");
    }
    assert!((ranks[0]["score"].as_f64().ok_or("no score")? - f64::from(cosines[0])).abs() < 1e-6);

    let tokens = gateway.post("/tokenize", &json!({"inputs": "disk full"})).await?.ok()?;
    assert_eq!(
        tokens[0][0],
        json!({"id": 101, "text": "[CLS]", "special": true, "start": null, "stop": null})
    );
    assert_eq!(tokens[0][2]["text"], "full");
    assert_eq!((&tokens[0][2]["start"], &tokens[0][2]["stop"]), (&json!(5), &json!(9)));
    let plain = json!({"inputs": ["disk full"], "add_special_tokens": false});
    let plain = gateway.post("/tokenize", &plain).await?.ok()?;
    assert_eq!(plain[0].as_array().map(Vec::len), Some(2));
    let ids: Vec<&Value> =
        plain[0].as_array().into_iter().flatten().map(|token| &token["id"]).collect();
    let row = gateway.post("/embed", &json!({"inputs": [ids]})).await?.ok()?;
    assert_eq!(floats(&row[0]).as_ref(), expected.first());
    stage.end().await.map(drop)
}

async fn a_text_that_is_added_is_embedded() -> Outcome {
    let stage = Stage::sim().await?;
    let text = "GPU-accelerated embedding";
    let added = stage.gateway.post("/add", &json!({"text": text})).await?.ok()?;
    assert_eq!(floats(&added["embedding"]), stage.daemon.client().vectors(&[text]).await?.pop());
    assert_eq!((&added["stored"], &added["truncated"]), (&json!(false), &json!(false)));
    stage.end().await.map(drop)
}

async fn mistakes_have_a_status_and_one_sentence() -> Outcome {
    let stage = Stage::sim().await?;
    let gateway = &stage.gateway;
    for (path, body, status, word) in [
        ("/v1/embeddings", "{", 400, "not what this route takes"),
        ("/v1/embeddings", r#"{"input": {"text": "one"}}"#, 400, "the input must be"),
        ("/v1/embeddings", r#"{"input": "one", "modle": "low"}"#, 400, "modle"),
        ("/v1/embeddings", r#"{"input": "one", "dimensions": 100}"#, 400, "dimensions is 100"),
        ("/v1/embeddings", "\u{feff}{}", 400, "byte order mark"),
        ("/v1/nothing", "{}", 404, "no route"),
        ("/health", "{}", 405, "does not take POST"),
        ("/embed", r#"{"inputs": "one", "prompt_name": "nope"}"#, 400, "option prompt"),
        ("/rerank", r#"{"query": "one"}"#, 400, "texts"),
        ("/tokenize", r#"{"inputs": 7}"#, 400, "must be a text"),
    ] {
        let answer = gateway.curl(path, &[], body).await?;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text);
        assert!(sentence(&answer, path)?.contains(word), "{path} {body}: {}", answer.text);
    }
    let form = gateway.curl("/v1/embeddings", &["--data", "input=one"], "").await?;
    assert_eq!(form.status, 415, "{}", form.text);
    stage.end().await.map(drop)
}

/// The sentence of a refusal, in the shape of its route.
pub fn sentence(answer: &Answer, path: &str) -> Outcome<String> {
    let body = answer.json()?;
    let sentence = match path.starts_with("/v1/") {
        true => &body["error"]["message"],
        false => &body["error"],
    };
    Ok(sentence.as_str().ok_or_else(|| format!("no sentence: {body}"))?.to_owned())
}

async fn texts_stay_out_of_the_log() -> Outcome {
    let setup = Setup::sim()?;
    let (bus, setup, mut daemon) = setup.setting("log", LOG_ALL).alone().await?;
    let gateway = Gateway::start(&bus, &setup).await?;
    let secret = "xyzzy-plugh";
    for (path, body) in [
        ("/v1/embeddings", json!({"input": secret})),
        ("/embed", json!({"inputs": secret})),
        ("/", json!({"inputs": secret})),
        ("/similarity", json!({"inputs": {"source_sentence": secret, "sentences": [secret]}})),
        ("/rerank", json!({"query": secret, "texts": [secret]})),
        ("/tokenize", json!({"inputs": secret})),
        ("/add", json!({"text": secret})),
    ] {
        gateway.post(path, &body).await?.ok()?;
        let refused = gateway.post(path, &json!({"input": {"text": secret}})).await?;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
    }
    // A client may put a text where the service wants the name of a prompt, and is told of it.
    let quoted = gateway.post("/embed", &json!({"inputs": "one", "prompt_name": secret})).await?;
    assert!(quoted.status == 400 && quoted.text.contains(secret), "{}", quoted.text);
    for path in ["/", "/health", "/ready", "/status", "/metrics", "/openapi.json", "/v1/models"] {
        let told = gateway.get(path).await?;
        assert!(told.status == 200 && !told.text.contains(secret), "{path}: {}", told.text);
    }
    let log = gateway.stop().await?;
    daemon.process.signal(Signal::SIGTERM)?;
    assert!(daemon.process.ended().await?.success());
    for log in [log, daemon.process.stderr()] {
        assert!(log.len() > 1000 && !log.contains(secret), "{log}");
    }
    Ok(())
}
