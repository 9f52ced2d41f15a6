//! `op-dbus providers`: which execution providers the service could compute on, and which it does.

use serde_json::{Value, json};

use super::terminal::{Colour, colour, paint, printable};
use super::{BusArgs, Done, connect, printed};
use op_dbus_api::json_object;

/// List the execution providers, and why those that do not run don't
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  op-dbus providers
  op-dbus providers --json | jq -r '.[] | select(.available).name'")]
pub struct Args {
    /// One JSON array, an object for each provider
    #[arg(long, help_heading = "Output")]
    json: bool,
    #[command(flatten)]
    bus: BusArgs,
}

pub async fn run(args: Args) -> Done {
    let service = connect(&args.bus.bus).await?;
    let manager = service.manager().await?;
    let providers = service.told(manager.list_providers()).await?;
    let providers: Vec<Value> = providers.iter().map(|one| json!(json_object(one))).collect();
    let out = match args.json {
        true => format!("{:#}\n", Value::from(providers)),
        false => providers.iter().map(|provider| line(provider, colour())).collect(),
    };
    printed(out)
}

/// Name and devices of one that runs; name and reason of one that doesn't.
fn line(provider: &Value, coloured: bool) -> String {
    let text = |key: &str| provider[key].as_str().unwrap_or_default();
    let words = |key: &str| -> Vec<&str> {
        provider[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    };
    let devices = printable(&words("devices").join(", "), 400);
    let (state, shade) = match (text("reason"), devices.is_empty()) {
        ("", false) => (format!("computes on {devices}"), Colour::Good),
        ("", true) => ("can compute".to_owned(), Colour::Good),
        (reason, _) => (printable(reason, 400), Colour::Faint),
    };
    format!("{:<9} {}\n", text("name"), paint(state, shade, coloured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_tells_its_devices_or_what_is_missing() {
        let runs = json!({ "name": "ggml", "reason": "", "devices": ["ggml:0", "ggml:1"] });
        assert_eq!(line(&runs, false), "ggml      computes on ggml:0, ggml:1\n");
        let idle = json!({ "name": "cpu", "reason": "", "devices": [] });
        assert_eq!(line(&idle, false), "cpu       can compute\n");
        let missing = json!({ "name": "cuda", "reason": "no \u{1b}driver", "devices": [] });
        assert!(!line(&missing, false).contains('\u{1b}'));
        assert!(line(&missing, false).contains("driver"));
    }
}
