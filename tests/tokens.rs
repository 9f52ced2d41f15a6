//! Token ids in place of texts: what a client has tokenized itself.

use op_dbus_api::ErrorName;
use zbus::Variant;

use crate::harness::bus::PrivateBus;
use crate::harness::client::{Client, Options, refused};
use crate::harness::daemon::Setup;
use crate::harness::golden::plain_texts;
use crate::harness::registry::tests;
use crate::harness::{Outcome, eventually};

tests! {
    ids_have_the_vectors_of_their_texts: [Bus, Medium],
    tokens_say_where_they_stand: [Bus, Medium],
    what_tokens_can_not_be_is_refused: [Bus],
    nobody_counts_tokens_for_who_has_left: [Bus],
    a_default_prompt_that_the_model_lacks_is_refused_at_the_load: [Bus, Low],
    a_prompt_is_never_left_out_in_silence: [Bus, Low],
}

/// What `Tokenize` makes of `texts`, as lists of ids, with the special tokens or without them.
async fn ids(client: &Client, texts: &[&str], specials: bool) -> Outcome<Vec<Vec<u32>>> {
    let tokens = client.embedder.tokenize(texts, Options::new()).await?;
    let wanted = |tokens: Vec<(u32, String, bool, u32, u32)>| {
        tokens.into_iter().filter(|token| specials || !token.2).map(|token| token.0).collect()
    };
    Ok(tokens.into_iter().map(wanted).collect())
}

async fn embedded(
    client: &Client,
    lists: &[Vec<u32>],
    options: Options<'_>,
) -> zbus::Result<Vec<u8>> {
    let lists: Vec<&[u32]> = lists.iter().map(Vec::as_slice).collect();
    Ok(client.embedder.embed_tokens(&lists, options).await?.0.into_vec())
}

async fn ids_have_the_vectors_of_their_texts() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("medium")?.alone().await?;
    let client = daemon.client();
    let texts = plain_texts()?;
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    // One of them is longer than the model reads: it is cut in the same place.
    for truncate in ["end", "start", "mean"] {
        let options = || Options::from([("truncate", Variant::from(truncate))]);
        let (bytes, _, _, _) = client.embedder.embed_packed(&texts, options()).await?;
        for specials in [true, false] {
            let ids = ids(client, &texts, specials).await?;
            assert!(ids.iter().any(|ids| ids.len() > 256));
            assert_eq!(embedded(client, &ids, options()).await?, *bytes, "{truncate} {specials}");
        }
    }
    let counts = client.embedder.count_tokens(&texts).await?;
    let lengths = ids(client, &texts, true).await?.into_iter().map(|ids| ids.len() as u32);
    assert_eq!(counts, lengths.collect::<Vec<_>>());
    daemon.stop().await
}

async fn tokens_say_where_they_stand() -> Outcome {
    let (_bus, _setup, daemon) = Setup::real("medium")?.alone().await?;
    let texts = ["Überlauf: disk full"];
    let tokens = daemon.client().embedder.tokenize(&texts, Options::new()).await?;
    let told: Vec<(&str, bool, &str)> = tokens[0]
        .iter()
        .map(|(_, piece, special, start, end)| {
            (piece.as_str(), *special, &texts[0][*start as usize..*end as usize])
        })
        .collect();
    assert_eq!(told.first(), Some(&("[CLS]", true, "")));
    assert_eq!(told[1], ("uber", false, "Über"));
    assert_eq!(told[told.len() - 2], ("full", false, "full"));
    assert_eq!(told.last(), Some(&("[SEP]", true, "")));
    let options = Options::from([("covered", Variant::from(true))]);
    let covered = daemon.client().embedder.tokenize(&texts, options).await?;
    let covered = covered[0].iter().map(|(_, text, ..)| text.as_str());
    let expected = told.iter().map(|(piece, special, text)| if *special { piece } else { text });
    assert_eq!(covered.collect::<Vec<_>>(), expected.copied().collect::<Vec<_>>());
    daemon.stop().await
}

async fn what_tokens_can_not_be_is_refused() -> Outcome {
    let (_bus, _setup, daemon) = Setup::sim()?.alone().await?;
    let client = daemon.client();
    let foreign = embedded(client, &[vec![1], vec![1, 100_257]], Options::new()).await;
    let message = refused(foreign, ErrorName::InvalidArgument)?;
    assert!(message.contains("text 1 has the token id 100257"), "{message}");
    assert!(message.contains("below 258"), "{message}");
    let options = Options::from([("truncate", Variant::from("error"))]);
    let long = embedded(client, &[vec![1; 1000]], options).await;
    refused(long, ErrorName::TooLong)?;
    let huge = embedded(client, &[vec![1; 1 << 20]], Options::new()).await;
    let message = refused(huge, ErrorName::TooLarge)?;
    assert!(message.contains("in token ids is 1048576, the limit is 262144"), "{message}");
    let many = embedded(client, &vec![vec![1]; 16_385], Options::new()).await;
    let message = refused(many, ErrorName::TooLarge)?;
    assert!(message.contains("lists of token ids in the call is 16385"), "{message}");

    let options = Options::from([("normalize", Variant::from(true))]);
    let message =
        refused(client.embedder.tokenize(&["a"], options).await, ErrorName::InvalidArgument)?;
    assert!(message.contains("accepted: level, prompt, deadline_ms, covered"), "{message}");
    let text = "x".repeat(1 << 20);
    // Each text is within the bounds, and together they are not.
    let both = client.embedder.tokenize(&[&text, "x"], Options::new()).await;
    refused(both, ErrorName::TooLarge)?;
    let message =
        refused(client.embedder.tokenize(&[&text], Options::new()).await, ErrorName::TooLarge)?;
    assert!(message.contains("16777216"), "{message}");
    let at_once = Options::from([("deadline_ms", Variant::from(0_u32))]);
    let late = client.embedder.tokenize(&[&text], at_once).await;
    refused(late, ErrorName::DeadlineExceeded)?;
    daemon.stop().await
}

async fn a_default_prompt_that_the_model_lacks_is_refused_at_the_load() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let config = setup.config_file();
    let command = setup.command(&bus)?;
    let settings = std::fs::read_to_string(&config)?;
    let write = |prompt: &str| {
        let table = format!("[models.paraphrase-MiniLM-L3-v2]\ndefault_prompt = \"{prompt}\"\n");
        std::fs::write(&config, format!("{settings}\n{table}prompts = {{ q = \"query: \" }}\n"))
    };
    write("qq")?;
    let daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "failed");
    let client = daemon.client();
    let message = refused(client.embedder.embed("x").await, ErrorName::WorkerFailed)?;
    for part in ["paraphrase-MiniLM-L3-v2.default_prompt", "config.toml", "it has q"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    write("q")?;
    client.manager.reload().await?;
    assert_eq!(daemon.state(|state| state != "loading").await?, "ready");
    client.embedder.embed("x").await?;
    // A reload that would bring it back is refused, and what serves goes on.
    write("qq")?;
    let message = refused(client.manager.reload().await, ErrorName::WorkerFailed)?;
    assert!(message.contains("default_prompt"), "{message}");
    client.embedder.embed("x").await?;
    daemon.stop().await
}

async fn a_prompt_is_never_left_out_in_silence() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::real("low")?;
    let config = setup.config_file();
    let command = setup.command(&bus)?;
    let table =
        "[models.paraphrase-MiniLM-L3-v2]\ndefault_prompt = \"q\"\nprompts = { q = \"query: \" }\n";
    let settings = std::fs::read_to_string(&config)?;
    std::fs::write(&config, format!("{settings}\n{table}"))?;
    let daemon = setup.start_command(command, &bus).await?;
    assert_eq!(daemon.settled().await?, "ready");
    let client = daemon.client();
    let ids = ids(client, &["disk full"], false).await?;
    assert_eq!(ids[0].len(), 4, "the prompt's tokens and the text's: {ids:?}");
    refused(embedded(client, &ids, Options::new()).await, ErrorName::InvalidArgument)?;
    let none = Options::from([("prompt", Variant::from(""))]);
    let (expected, _, _, _) = client.embedder.embed_packed(&["disk full"], Options::new()).await?;
    assert_eq!(embedded(client, &ids, none).await?, *expected);
    daemon.stop().await
}

/// Counting takes as long as the texts are, and keeps nobody else waiting for it.
async fn nobody_counts_tokens_for_who_has_left() -> Outcome {
    let bus = PrivateBus::start().await?;
    let daemon = Setup::sim()?.ready(&bus).await?;
    let long = "x".repeat(1 << 20);
    let texts = vec![long.as_str(); 20];
    // On a busy machine all may be counted before anybody sees that the caller has left.
    eventually("a call that ends with its caller", async || {
        let leaving = Client::on(&bus).await?;
        tokio::select! {
            counts = leaving.embedder.count_tokens(&texts) => drop(counts?),
            counting = daemon.client().counted("in_flight_calls", 1) => counting?,
        }
        drop(leaving);
        // What was begun of it is done to its end.
        eventually("the end of its texts", async || {
            Ok(daemon.client().counter("in_flight_calls").await? == 0)
        })
        .await?;
        Ok(daemon.client().failures("cancelled").await? != 0)
    })
    .await?;
    daemon.stop().await
}
