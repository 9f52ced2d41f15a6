//! What text-embeddings-inference's clients may ask for: each option does what it says.

use serde_json::{Value, json};
use zbus::Variant;

use super::{Stage, sentence};
use crate::harness::Outcome;
use crate::harness::client::Options;
use crate::harness::daemon::Setup;
use crate::harness::golden::{cosine, floats};
use crate::harness::registry::tests;

tests! {
    vectors_have_length_one_unless_that_is_not_wanted: [Bus, Curl, Low],
    normalize_false_is_refused_where_the_model_normalises: [Bus, Curl, Medium],
    the_end_that_is_said_is_cut: [Bus, Curl, Low],
    no_more_ranks_come_than_are_wanted: [Bus, Curl],
    similarity_knows_prompts: [Bus, Curl, Low],
    null_is_as_good_as_nothing: [Bus, Curl],
    tokens_have_the_text_that_they_stand_for: [Bus, Curl, Low],
    refusals_are_told_in_the_words_of_their_clients: [Bus, Curl],
    info_tells_what_clients_ask_before_they_send_texts: [Bus, Curl, Low],
}

/// A daemon whose model does not normalise by itself.
async fn low() -> Outcome<Stage> {
    let prompt = "models.paraphrase-MiniLM-L3-v2.prompts.q";
    Stage::of(Setup::real("low")?.setting(prompt, "query: ")).await
}

/// The first row of what `/embed` makes of this.
async fn embedded(stage: &Stage, body: Value) -> Outcome<Vec<f32>> {
    let rows = stage.gateway.post("/embed", &body).await?.ok()?;
    Ok(floats(&rows[0]).ok_or("no numbers")?)
}

async fn vectors_have_length_one_unless_that_is_not_wanted() -> Outcome {
    let stage = low().await?;
    let own = stage.daemon.client().vectors(&["disk full"]).await?.remove(0);
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!(length(&own) > 2.0, "{}", length(&own));
    let plain = json!({"inputs": "disk full", "normalize": false});
    assert_eq!(embedded(&stage, plain).await?, own);
    for body in [json!({"inputs": "disk full"}), json!({"inputs": "disk full", "normalize": true})]
    {
        let unit = embedded(&stage, body).await?;
        assert!((length(&unit) - 1.0).abs() < 1e-5, "{}", length(&unit));
    }
    stage.end().await.map(drop)
}

/// Some clients send it unless they are told otherwise, as Haystack's do.
async fn normalize_false_is_refused_where_the_model_normalises() -> Outcome {
    let stage = Stage::of(Setup::real("medium")?).await?;
    let own = stage.daemon.client().vectors(&["disk full"]).await?.remove(0);
    for path in ["/embed", "/"] {
        let body = |normalize: bool| json!({"inputs": "disk full", "normalize": normalize});
        let refused = stage.gateway.post(path, &body(false)).await?;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        let said = sentence(&refused, path)?;
        assert!(said.starts_with("normalize is false"), "{path}: {said}");
        let rows = stage.gateway.post(path, &body(true)).await?.ok()?;
        assert_eq!(floats(&rows[0]).ok_or("no numbers")?, own, "{path}");
    }
    stage.end().await.map(drop)
}

async fn no_more_ranks_come_than_are_wanted() -> Outcome {
    let stage = Stage::sim().await?;
    let asked = async |top_n: Value| {
        let body = json!({"query": "b", "texts": ["a", "b", "c"], "top_n": top_n});
        stage.gateway.post("/rerank", &body).await?.ok()
    };
    let all = asked(Value::Null).await?;
    let all = all.as_array().ok_or("no list")?;
    assert_eq!((all.len(), &all[0]["index"]), (3, &json!(1)));
    for (top_n, count) in [(2, 2), (0, 0), (3, 3), (u32::MAX, 3)] {
        assert_eq!(asked(json!(top_n)).await?, json!(all[..count]), "{top_n}");
    }
    stage.end().await.map(drop)
}

async fn the_end_that_is_said_is_cut() -> Outcome {
    let stage = low().await?;
    let long = "disk full ".repeat(200) + "the sun shines";
    let mut kept = Vec::new();
    for (direction, truncate) in [("Right", "end"), ("Left", "start")] {
        let options = Options::from([("truncate", Variant::from(truncate))]);
        let expected = stage.daemon.client().packed(&[&long], options).await?.vectors.remove(0);
        let body = json!({"inputs": long, "normalize": false, "truncation_direction": direction});
        assert_eq!(embedded(&stage, body).await?, expected, "{direction}");

        let query = stage.daemon.client().vectors(&["sun"]).await?.remove(0);
        let near: f64 = cosine(&query, &expected);
        let pair = json!({"source_sentence": "sun", "sentences": [long]});
        let body = json!({"inputs": pair, "parameters": {"truncation_direction": direction}});
        let found = stage.gateway.post("/similarity", &body).await?.ok()?;
        assert!((found[0].as_f64().ok_or("no cosine")? - near).abs() < 1e-5, "{direction}: {near}");
        let body = json!({"query": "sun", "texts": [long], "truncation_direction": direction});
        let found = stage.gateway.post("/rerank", &body).await?.ok()?;
        assert!((found[0]["score"].as_f64().ok_or("no score")? - near).abs() < 1e-5, "{direction}");
        kept.push(expected);
    }
    assert_ne!(kept[0], kept[1]);
    let pair = json!({"source_sentence": "sun", "sentences": [long]});
    for (path, body) in [
        ("/embed", json!({"inputs": long, "truncate": false})),
        ("/similarity", json!({"inputs": pair, "parameters": {"truncate": false}})),
        ("/rerank", json!({"query": "sun", "texts": [long], "truncate": false})),
    ] {
        let refused = stage.gateway.post(path, &body).await?;
        let told = refused.json()?;
        assert_eq!((refused.status, &told["code"]), (413, &json!("too_long")));
        assert_eq!(told["error_type"], "Validation");
    }
    stage.end().await.map(drop)
}

async fn similarity_knows_prompts() -> Outcome {
    let stage = low().await?;
    let asked = async |first: &str, second: &str, parameters: Value| {
        let inputs = json!({"source_sentence": first, "sentences": [second]});
        let body = json!({"inputs": inputs, "parameters": parameters});
        stage.gateway.post("/similarity", &body).await?.ok()
    };
    let with = asked("disk full", "the sun shines", json!({"prompt_name": "q"})).await?;
    let without = asked("disk full", "the sun shines", json!({})).await?;
    assert_ne!(with, without);
    assert_eq!(with, asked("query: disk full", "query: the sun shines", json!({})).await?);
    stage.end().await.map(drop)
}

/// Many clients write out what they leave open; OpenAI's routes are asked that way as well.
async fn null_is_as_good_as_nothing() -> Outcome {
    let stage = Stage::sim().await?;
    let pair = json!({"source_sentence": "a", "sentences": ["b"]});
    let similarity = json!({"inputs": pair});
    let parameters = nulls(json!({}), &["truncate", "truncation_direction", "prompt_name"]);
    let with_parameters = json!({"inputs": pair, "parameters": parameters});
    for (path, plain, with_nulls) in [
        of(
            "/v1/embeddings",
            json!({"input": "a"}),
            &["model", "encoding_format", "dimensions", "user"],
        ),
        of(
            "/embed",
            json!({"inputs": "a"}),
            &[
                "normalize",
                "truncate",
                "truncation_direction",
                "prompt_name",
                "dimensions",
                "options",
            ],
        ),
        of(
            "/rerank",
            json!({"query": "a", "texts": ["b"]}),
            &["truncate", "truncation_direction", "raw_scores", "return_text", "top_n"],
        ),
        of("/tokenize", json!({"inputs": "a"}), &["add_special_tokens", "prompt_name"]),
        of("/similarity", similarity.clone(), &["parameters"]),
        ("/similarity", similarity, with_parameters),
    ] {
        let expected = stage.gateway.post(path, &plain).await?.ok()?;
        assert_eq!(stage.gateway.post(path, &with_nulls).await?.ok()?, expected, "{path}");
    }
    stage.end().await.map(drop)
}

async fn tokens_have_the_text_that_they_stand_for() -> Outcome {
    let stage = low().await?;
    let text = "Unbelievable embeddings: café";
    let words = ["Unbelievable", "em", "bed", "ding", "s", ":", "café"];
    for (prompt, before) in [(None, ""), (Some("q"), "query: ")] {
        let body = json!({"inputs": text, "prompt_name": prompt});
        let told = stage.gateway.post("/tokenize", &body).await?.ok()?;
        let tokens = told[0].as_array().ok_or("no list")?;
        assert_eq!(tokens.first().map(|token| &token["text"]), Some(&json!("[CLS]")));
        let mut found = Vec::new();
        for token in tokens.iter().filter(|token| token["special"] == false) {
            let place = |key: &str| token[key].as_u64().ok_or("no number").map(|at| at as usize);
            let (start, stop) = (place("start")?, place("stop")?);
            let covered = [before, text].concat()[start..stop].to_owned();
            assert_eq!(token["text"], covered);
            found.push(covered);
        }
        let of_prompt: &[&str] = if prompt.is_some() { &["query", ":"] } else { &[] };
        assert_eq!(found, [of_prompt, &words[..]].concat());
    }
    stage.end().await.map(drop)
}

async fn refusals_are_told_in_the_words_of_their_clients() -> Outcome {
    let stage = Stage::sim().await?;
    let unknown = json!({"inputs": "a", "prompt_name": "nope"});
    let told = stage.gateway.post("/embed", &unknown).await?.json()?;
    assert!(told["error_type"] == "Validation" && told["code"] == "invalid_request", "{told}");
    for (body, param) in [
        (json!({"input": "a", "dimensions": 100}), "dimensions"),
        (json!({"input": [[u32::MAX]]}), "input"),
        (json!({"input": "a", "model": "text-embedding-3-small"}), "model"),
    ] {
        let told = stage.gateway.post("/v1/embeddings", &body).await?.json()?;
        assert_eq!(told["error"]["param"], param, "{told}");
    }
    stage.end().await.map(drop)
}

async fn info_tells_what_clients_ask_before_they_send_texts() -> Outcome {
    let stage = Stage::of(Setup::real("low")?.setting("precision", "f32")).await?;
    let (gateway, client) = (&stage.gateway, stage.daemon.client());
    let told = gateway.get("/info").await?.ok()?;
    let expected = json!({
        "model_id": client.embedder.model().await?,
        "model_dtype": "float32",
        "model_type": {"embedding": {}},
        "max_concurrent_requests": 320,
        "max_input_length": client.embedder.max_input_tokens().await?,
        "max_client_batch_size": 256,
        "auto_truncate": true,
        "version": client.embedder.version().await?,
    });
    assert_eq!(told, expected);
    client.manager.set_vector_level("none").await?;
    let refused = gateway.get("/info").await?;
    assert_eq!((refused.status, &refused.json()?["error_type"]), (503, &json!("Unhealthy")));
    stage.end().await.map(drop)
}

fn of(path: &'static str, plain: Value, optional: &[&str]) -> (&'static str, Value, Value) {
    (path, plain.clone(), nulls(plain, optional))
}

fn nulls(mut object: Value, names: &[&str]) -> Value {
    for name in names {
        object[*name] = Value::Null;
    }
    object
}
