//! The examples of `docs/examples`, as they are printed there: each is run against a daemon with a
//! real model, and what it prints is checked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use tempfile::TempDir;
use tokio::process::Command;

use crate::harness::bus::PrivateBus;
use crate::harness::command::{clean, finish, with_program};
use crate::harness::daemon::{Daemon, Setup};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture, needs, repository};

tests! {
    semantic_grep_finds_what_is_meant: [Bus, Low, PythonPackages],
    dedup_alerts_counts_what_says_the_same: [Bus, Low, PythonPackages],
    cluster_logs_groups_by_subject: [Bus, Low, PythonPackages],
    embed_py_finds_the_nearest: [Bus, Low, PythonPackages],
    a_reader_that_has_seen_enough_ends_them_quietly: [Bus, Low, PythonPackages],
    dask_embeds_lines_in_their_order: [Bus, Low, PythonPackages, Cluster] =>
        embeds_on_a_cluster("dask-embed.py", &["1", "2", "4"]),
    dask_embeds_on_a_cluster_that_is_there: [Bus, Low, PythonPackages, Cluster] =>
        embeds_on_a_cluster(fixture("python/dask_cluster.py"), &["2"]),
    ray_embeds_lines_in_their_order: [Bus, Low, PythonPackages, Cluster] =>
        embeds_on_a_cluster("ray-embed.py", &["1", "2", "4"]),
    rank_man_pages_answers_a_question: [Bus, Low],
    loop_sh_compares_each_line: [Bus, Low, Busctl],
    loop_sh_compares_where_numbers_have_commas: [Bus, Low, Busctl, Bash, Locales],
    gdbus_sh_and_embed_c_agree: [Bus, Low, Gdbus, SdBus],
    rust_examples_find_what_is_meant: [Bus, Low, RustExamples],
    every_example_has_its_line: [],
}

/// A daemon with the model of level `low` on a bus that the examples take for the system's.
struct Gallery {
    bus: PrivateBus,
    // Before its folder.
    daemon: Daemon,
    _setup: Setup,
}

impl Gallery {
    async fn open() -> Outcome<Self> {
        let bus = PrivateBus::start().await?;
        // Vectors of 32-bit floats, so that every CPU finds the same order.
        let setup = Setup::real("low")?.setting("precision", "f32");
        let daemon = setup.ready(&bus).await?;
        Ok(Self { bus, daemon, _setup: setup })
    }

    /// Runs `command` in the folder of the examples, with this gallery's bus as the system bus.
    async fn finish(&self, mut command: Command, input: impl AsRef<[u8]>) -> Outcome<String> {
        command.current_dir(folder()).env("DBUS_SYSTEM_BUS_ADDRESS", self.bus.address());
        finish(command, input).await?.success()
    }

    /// An example in Python.
    async fn python(&self, words: &[&str], input: impl AsRef<[u8]>) -> Outcome<String> {
        let mut command = packaged(clean(needs::python_packages()))?;
        command.args(words);
        self.finish(command, input).await
    }

    /// An example for the shell, with the program under test on its path.
    async fn shell(&self, words: &[&str], input: impl AsRef<[u8]>) -> Outcome<String> {
        let mut command = with_program(clean("sh"))?;
        command.args(words);
        self.finish(command, input).await
    }
}

/// Has Python find the package as it is in the tree.
fn packaged(mut command: Command) -> Outcome<Command> {
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("PYTHONPATH", repository().canonicalize()?.join("packaging/python/src"));
    Ok(command)
}

fn folder() -> PathBuf {
    repository().join("docs/examples")
}

/// One of the inputs that lie beside the examples.
fn input(name: &str) -> Outcome<String> {
    Ok(std::fs::read_to_string(folder().join("input").join(name))?)
}

/// What each line says behind its first word, a number.
fn texts(said: &str) -> Vec<&str> {
    said.lines()
        .filter_map(|line| line.trim_start().split_once(char::is_whitespace))
        .map(|(number, text)| {
            assert!(number.parse::<f64>().is_ok(), "{number:?} is no number:\n{said}");
            text.trim_start()
        })
        .collect()
}

async fn semantic_grep_finds_what_is_meant() -> Outcome {
    let gallery = Gallery::open().await?;
    let journal = input("journal.json")?;
    let question = "why is the network down?";
    let said = gallery.python(&["semantic-grep.py", question], &journal).await?;
    let mut found = texts(&said);
    found.sort_unstable();
    let expected = [
        "No DHCPOFFERS received, the network is unreachable.",
        "e1000e 0000:00:1f.6 eno1: NIC Link is Down",
    ];
    assert_eq!(found, expected, "{said}");
    // A message that is not UTF-8 comes as bytes.
    let words = ["semantic-grep.py", "which archive was skipped?", "--count", "1"];
    let said = gallery.python(&words, &journal).await?;
    assert_eq!(texts(&said), ["caf\u{fffd}.tar was skipped"]);
    // One that is there more than once comes as a list, and JSON may have halves of characters.
    let twice = "{\"MESSAGE\":[\"no network\",\"\\ud83d\",[99,97,102,233]]}\n";
    let said = gallery.python(&["semantic-grep.py", "no network"], twice).await?;
    assert_eq!(texts(&said), ["no network \u{fffd} caf\u{fffd}"]);
    // Neither are the lines of every log.
    let said = gallery.python(&["semantic-grep.py", "no network"], b"no network caf\xe9\n").await?;
    assert_eq!(texts(&said), ["no network caf\u{fffd}"]);
    let all = ["semantic-grep.py", "no network", "--least=-1"];
    let said = gallery.python(&all, "\nno network\n  \n{\"MESSAGE\":null}\n").await?;
    assert_eq!(texts(&said), ["no network"]);
    let words = ["semantic-grep.py", "is the machine too hot?", "input/log.txt", "--count", "3"];
    let said = gallery.python(&words, "").await?;
    let hot = ["temperature", "overheating"];
    let found = texts(&said);
    assert!(
        found.len() == 3 && found.iter().all(|line| hot.iter().any(|word| line.contains(word)))
    );
    gallery.daemon.stop().await
}

async fn dedup_alerts_counts_what_says_the_same() -> Outcome {
    let gallery = Gallery::open().await?;
    let said = gallery.python(&["dedup-alerts.py"], &input("alerts.txt")?).await?;
    let expected = [
        "  3  Disk usage on db1 is above 95%",
        "  2  Backup of the mail server failed",
        "  2  High CPU load on web2",
        "  2  Certificate of shop.example.com expires in 3 days",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
    assert_eq!(gallery.python(&["dedup-alerts.py"], "").await?, "");
    let odd = gallery.python(&["dedup-alerts.py"], b"Disk full\nDisk full\xff\0\n").await?;
    assert_eq!(odd, "  2  Disk full\n");
    gallery.daemon.stop().await
}

async fn cluster_logs_groups_by_subject() -> Outcome {
    let gallery = Gallery::open().await?;
    let words = ["cluster-logs.py", "--groups", "4"];
    let said = gallery.python(&words, &input("log.txt")?).await?;
    let groups: Vec<Vec<&str>> =
        said.split("# 3 lines\n").skip(1).map(|group| group.lines().collect()).collect();
    // What only the lines of one subject have.
    let subjects: [&[&str]; 4] = [
        &["isk ", "No space"],
        &["alice", "bob"],
        &["network", "gateway"],
        &["emperature", "overheating"],
    ];
    assert_eq!(groups.len(), subjects.len(), "{said}");
    // Of fewer kinds than groups.
    assert_eq!(gallery.python(&words, b"\xff\n\0\n").await?, "# 2 lines\n  \u{fffd}\n  \u{fffd}\n");
    for group in &groups {
        let about = |words: &&&[&str]| {
            group.iter().all(|line| words.iter().any(|word| line.contains(word)))
        };
        assert_eq!(subjects.iter().filter(about).count(), 1, "{said}");
    }
    gallery.daemon.stop().await
}

async fn embed_py_finds_the_nearest() -> Outcome {
    let gallery = Gallery::open().await?;
    let texts = ["the disk is full", "no space left on device", "user logged in"];
    let said = gallery.python(&[&["embed.py"], &texts[..]].concat(), "").await?;
    let first = "3 vectors of 384 numbers, made by paraphrase-MiniLM-L3-v2 on cpu:0\n";
    assert!(said.starts_with(first), "{said}");
    let nearest = "nearest: 'the disk is full' and 'no space left on device', cosine 0.37";
    assert!(said.lines().nth(1) == Some(nearest) && said.lines().count() == 2, "{said}");
    let long = "word ".repeat(300);
    let said = gallery.python(&["embed.py", "short", &long], "").await?;
    assert!(said.contains("longer than the model reads: 'word word"), "{said}");
    // Alone, and not UTF-8.
    let mut command = packaged(clean(needs::python_packages()))?;
    command.arg("embed.py").arg(OsStr::from_bytes(b"caf\xe9"));
    let said = gallery.finish(command, "").await?;
    assert!(said.starts_with("1 vectors") && said.lines().count() == 1, "{said}");
    gallery.daemon.stop().await
}

async fn a_reader_that_has_seen_enough_ends_them_quietly() -> Outcome {
    let gallery = Gallery::open().await?;
    for words in [
        &["semantic-grep.py", "the disk is full"][..],
        &["dedup-alerts.py"],
        &["cluster-logs.py"],
        &["embed.py", "one", "two"],
    ] {
        let mut command = packaged(clean("sh"))?;
        command.args(["-c", "\"$0\" \"$@\" | :"]).arg(needs::python_packages()).args(words);
        command.current_dir(folder()).env("DBUS_SYSTEM_BUS_ADDRESS", gallery.bus.address());
        let ended = finish(command, &input("log.txt")?).await?;
        assert_eq!(ended.stderr, "", "{words:?}");
    }
    gallery.daemon.stop().await
}

/// A program embeds lines with so many processes: the vectors are those of the bus, in the order of the
/// lines.
async fn embeds_on_a_cluster(program: impl AsRef<OsStr>, numbers: &[&str]) -> Outcome {
    let gallery = Gallery::open().await?;
    let folder = tempfile::Builder::new().prefix("cluster-").tempdir()?;
    let mut lines: Vec<String> = (0..300).map(|n| format!("line {n} of a file")).collect();
    // One line to the service, and three to Python's `splitlines`.
    lines[7] = "line 7\u{c} of\u{2028} a file".to_owned();
    let (texts, vectors) = (folder.path().join("texts"), folder.path().join("vectors.npy"));
    std::fs::write(&texts, lines.join("\n"))?;
    let own = gallery.daemon.client().vectors(&lines).await?;
    let calls = gallery.daemon.client().counter("calls").await?;
    for processes in numbers {
        let mut command = clean(needs::python_packages());
        command.arg(&program).arg(&texts).arg(&vectors);
        command.args(["--processes", processes, "--lines", "64"]);
        let paths =
            [repository().canonicalize()?.join("packaging/python/src"), needs::cluster_path()];
        command.env("PYTHONPATH", std::env::join_paths(paths)?).env("PYTHONDONTWRITEBYTECODE", "1");
        // Ray would keep a token in the home folder, and count who uses it.
        command.env("RAY_AUTH_MODE", "disabled").env("RAY_USAGE_STATS_ENABLED", "0");
        let said = gallery.finish(command, "").await?;
        assert!(said.contains("300 lines"), "{said}");
        let npy = std::fs::read(&vectors)?;
        // Behind a head whose length is told: 32-bit floats, row by row.
        let head = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
        let expected: Vec<u8> = own.iter().flatten().flat_map(|x| x.to_le_bytes()).collect();
        assert!(npy[head..] == expected, "other vectors, or in another order");
    }
    // Five batches each time, and one again where the cluster took its process for lost.
    let calls = gallery.daemon.client().counter("calls").await? - calls;
    assert!(calls >= 5 * numbers.len() as u64, "{calls} calls");
    gallery.daemon.stop().await
}

async fn rank_man_pages_answers_a_question() -> Outcome {
    let gallery = Gallery::open().await?;
    let question = "how much room is left on my disk?";
    let said = gallery.shell(&["rank-man-pages.sh", question, "input/man-pages.txt"], "").await?;
    let found = texts(&said);
    assert_eq!(found.len(), 5, "{said}");
    assert!(found[0].starts_with("df (1)") && found[1].starts_with("du (1)"), "{said}");
    // No option, whatever it begins with.
    let said = gallery.shell(&["rank-man-pages.sh", "--help", "input/man-pages.txt"], "").await?;
    assert_eq!(texts(&said).len(), 5, "{said}");
    gallery.daemon.stop().await
}

async fn loop_sh_compares_each_line() -> Outcome {
    let gallery = Gallery::open().await?;
    let log = input("log.txt")?;
    let said = gallery.shell(&["loop.sh", "the disk is full"], &log).await?;
    let expected =
        ["The disk /dev/sda1 is almost full, 98% used", "Disk quota exceeded for user carol"];
    assert_eq!(texts(&said), expected, "{said}");
    // Not all lines are UTF-8.
    let said = gallery.shell(&["loop.sh", "disk full"], b"caf\xe9\nmy disk is full \xe9\n").await?;
    assert_eq!(texts(&said), ["my disk is full \u{fffd}"]);
    gallery.daemon.stop().await
}

async fn loop_sh_compares_where_numbers_have_commas() -> Outcome {
    let gallery = Gallery::open().await?;
    let locales = tempfile::tempdir()?;
    let mut german = clean("localedef");
    german.args(["-i", "de_DE", "-f", "UTF-8"]).arg(locales.path().join("de_DE.UTF-8"));
    finish(german, "").await?.success()?;
    // As `sh` is on many systems: its printf reads numbers as the locale has them.
    let mut bash = clean("bash");
    bash.args(["loop.sh", "the disk is full"]);
    bash.env("LOCPATH", locales.path()).env("LC_ALL", "de_DE.UTF-8");
    let said = gallery.finish(bash, input("log.txt")?).await?;
    assert_eq!(texts(&said).len(), 2, "{said}");
    assert!(said.lines().all(|line| line.starts_with("0.")), "{said}");
    gallery.daemon.stop().await
}

async fn gdbus_sh_and_embed_c_agree() -> Outcome {
    let gallery = Gallery::open().await?;
    let pair = ["the disk is full", "no space left on device"];
    let said = gallery.shell(&[&["gdbus.sh"], &pair[..]].concat(), "").await?;
    let cosine: f64 = said.trim().trim_matches(['(', ')', ',']).parse()?;
    let own = gallery.daemon.client().embedder.similarity(pair[0], pair[1]).await?;
    assert!((cosine - own).abs() < 1e-9, "{said} {own}");
    // A line each, as they came.
    let quoted = "'the disk is full'";
    let lines = [pair[1], "a cat  sat \\ on 'the' mat", pair[0], quoted];
    // The last is no whole line.
    let said = gallery.shell(&["gdbus.sh", pair[0]], &lines.join("\n")).await?;
    let mut cosines = Vec::new();
    for (said, line) in said.lines().zip(lines) {
        let (tuple, text) = said.split_once(' ').ok_or("a line without its text")?;
        assert_eq!(text, line);
        cosines.push(tuple.trim_matches(['(', ')', ',']).parse::<f64>()?);
    }
    assert_eq!(cosines.len(), 4, "{said}");
    let as_it_is = gallery.daemon.client().embedder.similarity(pair[0], quoted).await?;
    assert!(as_it_is < 0.999 && (cosines[3] - as_it_is).abs() < 1e-9, "{as_it_is} {said}");
    assert!((cosines[0] - own).abs() < 1e-9 && (cosines[2] - 1.0).abs() < 1e-6, "{said}");
    assert!(cosines[1] < cosines[0], "{said}");
    // Not all are UTF-8.
    let said = gallery.shell(&["gdbus.sh", pair[0]], b"caf\xe9\nthe disk is full\xe9").await?;
    assert!(
        said.lines().count() == 2 && said.contains("(1.0,) the disk is full\u{fffd}"),
        "{said}"
    );

    let folder = tempfile::Builder::new().prefix("embed-").tempdir()?;
    let program = compile("embed.c", &folder).await?;
    let mut command = clean(&program);
    command.args(pair);
    assert_eq!(gallery.finish(command, "").await?, format!("{own:.2}\n"));
    // A refusal is told by its name.
    gallery.daemon.client().manager.set_vector_level("none").await?;
    let mut command = clean(&program);
    command.args(pair).env("DBUS_SYSTEM_BUS_ADDRESS", gallery.bus.address());
    let refused = finish(command, "").await?;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.starts_with("org.opdbus.Embedding1.Error.Disabled: "));
    gallery.daemon.stop().await
}

/// Builds an example in C as its first lines say, and with every warning.
async fn compile(source: &str, to: &TempDir) -> Outcome<PathBuf> {
    let mut flags = clean("pkg-config");
    flags.args(["--cflags", "--libs", "libsystemd"]);
    let flags = finish(flags, "").await?.success()?;
    let program = to.path().join("program");
    let mut cc = clean("cc");
    cc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    cc.arg(folder().join(source)).args(flags.split_whitespace().map(OsStr::new));
    finish(cc, "").await?.success()?;
    Ok(program)
}

async fn rust_examples_find_what_is_meant() -> Outcome {
    let gallery = Gallery::open().await?;
    // What each is given is not all UTF-8, and what it reads has NULs.
    let mut nearest = clean(needs::example("nearest"));
    nearest.args(["the disk is full", "user logged in", "no space left on device"]);
    nearest.arg(OsStr::from_bytes(b"caf\xe9"));
    let said = gallery.finish(nearest, "").await?;
    let expected = r#""the disk is full" and "no space left on device", cosine 0.37"#;
    assert_eq!(said, format!("{expected} by paraphrase-MiniLM-L3-v2\n"));
    let mut rank = clean(needs::example("rank"));
    rank.arg("is the machine too hot?");
    let log = [input("log.txt")?.as_bytes(), b"caf\xe9\0\n"].concat();
    let said = gallery.finish(rank, log).await?;
    let hot = ["temperature", "overheating"];
    let found = texts(&said);
    assert!(
        found.len() == 3 && found.iter().all(|line| hot.iter().any(|word| line.contains(word)))
    );
    let mut search = clean(needs::example("search"));
    search.arg("input/log.txt");
    let questions = b"the disk is full\0\nis the cable of caf\xe9 plugged in?\n";
    let said = gallery.finish(search, questions).await?;
    let (first, found) = said.split_once('\n').ok_or("one line at most")?;
    assert_eq!(first, "12 vectors of 384 numbers");
    let expected =
        ["The disk /dev/sda1 is almost full, 98% used", "The network cable of eno1 was unplugged"];
    assert_eq!(texts(found), expected, "{said}");
    gallery.daemon.stop().await
}

async fn every_example_has_its_line() -> Outcome {
    let page = std::fs::read_to_string(folder().join("README.md"))?;
    for entry in folder().read_dir()? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let named = name == "README.md" || page.contains(&format!("({name})")) || name == "input";
        assert!(named, "docs/examples/README.md says nothing of {name}");
    }
    Ok(())
}
