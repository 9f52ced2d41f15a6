//! The manual pages, made by the program itself.

use crate::harness::Outcome;
use crate::harness::command::{clean, finish};
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;

tests! {
    every_command_has_its_manual_page: [],
    manual_pages_are_well_formed: [Groff],
}

async fn every_command_has_its_manual_page() -> Outcome {
    let folder = manual().await?;
    let pages = folder.path().join("man1");
    let overview = std::fs::read_to_string(pages.join("op-dbus.1"))?;
    assert!(overview.contains("Exit codes: 0 done"), "{overview}");
    for name in ["embed", "daemon", "models", "config"] {
        assert!(
            overview.contains(&format!("op\\-dbus\\-{name}(1)")),
            "{name} is not in: {overview}"
        );
        let page = std::fs::read_to_string(pages.join(format!("op-dbus-{name}.1")))?;
        assert!(page.contains(".SH SYNOPSIS") && page.contains("Exit codes: 0 done"), "{page}");
    }
    let embed = std::fs::read_to_string(pages.join("op-dbus-embed.1"))?;
    assert!(embed.contains("OP_DBUS_BUS"), "{embed}");
    // What people do not call has none.
    assert!(!pages.join("op-dbus-worker.1").exists());
    Ok(())
}

/// The manual pages, as a package has them.
async fn manual() -> Outcome<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let mut command = clean(op_dbus());
    command.arg("manual").arg(folder.path());
    finish(command, "").await?.success()?;
    Ok(folder)
}

/// groff has nothing to say about any of them, and the names that they refer to exist.
async fn manual_pages_are_well_formed() -> Outcome {
    let folder = manual().await?;
    for page in ["man1/op-dbus.1", "man5/op-dbus.toml.5", "man8/op-dbus.service.8"] {
        assert!(folder.path().join(page).is_file(), "{page}");
    }
    for section in folder.path().read_dir()? {
        for page in section?.path().read_dir()? {
            let mut groff = clean("groff");
            groff.args(["-K", "utf8", "-man", "-Tutf8", "-ww", "-z"]).arg(page?.path());
            let finished = finish(groff, "").await?;
            assert_eq!((finished.code, finished.stderr.as_str()), (Some(0), ""));
        }
    }
    let mut groff = clean("groff");
    groff
        .args(["-man", "-Tascii", "-P-cbou"])
        .arg(folder.path().join("man5/org.opdbus.Embedding1.5"));
    let text = finish(groff, "").await?.success()?;
    assert!(text.contains("EmbedPacked") && text.contains("op-dbus.toml"), "{text}");
    Ok(())
}
