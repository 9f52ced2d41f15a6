//! What the bench measures with: the user's texts, or generated ones.

use std::fs;

use super::{bench, json};
use crate::harness::Outcome;
use crate::harness::command::finish;
use crate::harness::registry::tests;

tests! {
    bench_measures_long_lines_over_the_bus: [Bus],
    bench_generates_what_is_asked_for: [],
}

/// As many lines as are sent of short ones are more than a message holds.
async fn bench_measures_long_lines_over_the_bus() -> Outcome {
    const LINE_BYTES: usize = 150_000;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("long");
    fs::write(&path, ("word ".repeat(LINE_BYTES / 5) + "\n").repeat(260))?;
    let corpus = path.to_str().ok_or("a path that is no text")?;
    let words = ["--json", "--spawn", "--at", "daemon", "--only", "calls,lanes"];
    let report = json(&[&words[..], &["--corpus", corpus]].concat()).await?;
    let lines = report["figures"].as_array().ok_or("no figures")?;
    let measures: Vec<_> = lines.iter().map(|line| &line["measure"]).collect();
    assert_eq!(measures, ["calls", "lane calls", "lane clients"]);
    for line in lines {
        let texts = line["texts_per_call"].as_u64().ok_or("no size")? as usize;
        assert!((1..=(4 << 20) / LINE_BYTES).contains(&texts), "{line}");
    }
    Ok(())
}

async fn bench_generates_what_is_asked_for() -> Outcome {
    let words = ["--json", "--at", "engine", "--only", "calls", "--generate", "passages,logs"];
    let report = json(&words).await?;
    let collections = report["collections"].as_array().ok_or("no collections")?;
    let help = finish(bench(&["--help"]), "").await?.success()?;
    let kinds = [("logs", "log lines, 6 to 30 words"), ("passages", "60 to 200 words")];
    assert_eq!(collections.len(), 1 + kinds.len(), "{report}");
    for (collection, (name, lengths)) in collections[1..].iter().zip(kinds) {
        assert_eq!(collection["name"], name);
        let source = collection["source"].as_str().ok_or("no source")?;
        assert!(source.contains(lengths) && help.contains(lengths), "{source}: {help}");
    }
    let both = finish(bench(&["--generate", "logs", "--corpus", "/nowhere"]), "").await?;
    assert_eq!(both.code, Some(2), "{}", both.stderr);
    Ok(())
}
