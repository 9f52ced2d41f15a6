//! Completion of the command line, in the shells that read our scripts.

use crate::harness::Outcome;
use crate::harness::command::{clean, finish};
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;

tests! {
    bash_reads_them_and_offers_what_follows: [Bash],
    zsh_reads_them: [Zsh] => are_read_by("zsh"),
    fish_reads_them: [Fish] => are_read_by("fish"),
}

/// The shell reads the script as its own, and runs nothing of it.
async fn are_read_by(shell: &str) -> Outcome {
    let mut print = clean(op_dbus());
    print.args(["completions", shell]);
    let script = tempfile::NamedTempFile::new()?;
    std::fs::write(script.path(), finish(print, "").await?.success()?)?;
    let mut read = clean(shell);
    read.arg("-n").arg(script.path());
    let read = finish(read, "").await?;
    assert_eq!((read.code, &*read.stderr), (Some(0), ""), "{shell}");
    Ok(())
}

async fn bash_reads_them_and_offers_what_follows() -> Outcome {
    are_read_by("bash").await?;
    // As the shell would ask for what may follow.
    let script = "source /dev/stdin; COMP_WORDS=(op-dbus \"$@\"); COMP_CWORD=$#; \
                  _op__dbus op-dbus \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"";
    let mut print = clean(op_dbus());
    print.args(["completions", "bash"]);
    let completions = finish(print, "").await?.success()?;
    for (words, expected) in [
        (&["embed", "--trunc"][..], "--truncate"),
        (&["models", "ver"], "verify"),
        (&["stat"], "status"),
        // For our own processes alone.
        (&["work"], ""),
    ] {
        let mut ask = clean("bash");
        ask.args(["--norc", "-c", script, "bash"]).args(words);
        let offered = finish(ask, &completions).await?.success()?;
        assert_eq!(offered.trim(), expected, "{words:?}");
    }
    Ok(())
}
