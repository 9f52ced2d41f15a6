//! What the doctor says of settings that a model does not fit, or that leave no room for a text.

use serde_json::Value;

use super::{check, findings, text};
use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    settings_that_no_call_gets_past_are_named: [Bus],
    settings_that_the_model_does_not_fit_are_seen_by_a_look: [Bus, Medium],
}

/// The provider is the CPU, and another one would do no better.
async fn settings_that_no_call_gets_past_are_named() -> Outcome {
    for (key, value) in
        [("quota_tokens", "1"), ("queue_tokens_max", "1"), ("expect_dimensions", "768")]
    {
        let found = findings(&Setup::sim()?.setting(key, value), 1, &[]).await?;
        let cpu = &found["providers"][0];
        assert_eq!((&found["works"], &cpu["works"]), (&Value::from(false), &Value::from(false)));
        check(&cpu["checks"], "proof", "wrong")?;
        assert!(text(&found["next"]).contains(key), "{found:#}");
        assert!(!text(&found["next"]).contains("execution_provider"), "{found:#}");
    }
    Ok(())
}

/// Short texts get past the limits, and so a proof would.
async fn settings_that_the_model_does_not_fit_are_seen_by_a_look() -> Outcome {
    for (name, key, value) in [
        ("limits", "quota_tokens", "255"),
        ("limits", "queue_tokens_max", "8"),
        ("dimensions", "expect_dimensions", "768"),
        ("prompt", "models.all-MiniLM-L6-v2.default_prompt", "query"),
    ] {
        let setup = Setup::real("medium")?.setting(key, value);
        let found = findings(&setup, 1, &["--quick", "cpu"]).await?;
        let wrong = check(&found["general"], name, "wrong")?;
        let setting = key.rsplit('.').next().unwrap_or_default();
        assert!(text(&wrong["found"]).contains(setting), "{wrong}");
        assert_eq!(found["next"], wrong["next"]);
    }
    let model = "models.all-MiniLM-L6-v2";
    let full = Setup::real("medium")?.setting(&format!("{model}.default_prompt"), "query");
    let full = full.setting(&format!("{model}.prompts.query"), &"word ".repeat(300));
    let found = findings(&full, 1, &["--quick", "cpu"]).await?;
    let wrong = check(&found["general"], "prompt", "wrong")?;
    assert!(text(&wrong["found"]).contains("fills all 256 tokens"), "{wrong}");
    assert_eq!(found["next"], wrong["next"]);
    let longest = Setup::real("medium")?.setting("quota_tokens", "256");
    findings(&longest.setting("queue_tokens_max", "256"), 0, &["--quick", "cpu"]).await?;
    Ok(())
}
