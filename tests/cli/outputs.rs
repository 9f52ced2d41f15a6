//! Files that `op-dbus embed --output` takes the place of.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::json_lines;
use crate::harness::Outcome;
use crate::harness::command::{clean, cli, finish};
use crate::harness::daemon::Setup;
use crate::harness::golden::floats;
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;
use crate::harness::users::{MEMBER, OTHER, SERVICE, Users};

tests! {
    embed_keeps_an_old_file_until_there_is_another: [Bus],
    embed_gives_an_old_file_to_nobody_else: [Bus, Root],
}

async fn embed_keeps_an_old_file_until_there_is_another() -> Outcome {
    let (bus, setup, daemon) = Setup::sim()?.alone().await?;
    let file = setup.path("old");
    let name = file.display().to_string();
    fs::write(&file, "one\ntwo\n")?;
    let nowhere = setup.path("nowhere").display().to_string();
    let failing = [&["--level", "huge", "x"][..], &["--expect-space", "other", "x"]];
    for arguments in failing.into_iter().chain([&["--file", &nowhere][..]]) {
        for format in ["--npy", "--csv"] {
            let words = [&["embed", format, "--output", &name], arguments].concat();
            assert_eq!(cli(&bus, &words).await?.code, Some(1), "{words:?}");
            assert_eq!(fs::read(&file)?, b"one\ntwo\n", "{words:?}");
        }
    }
    // A file may be replaced by its own vectors.
    cli(&bus, &["embed", "--json", "--file", &name, "--output", &name]).await?.success()?;
    let lines = json_lines(&fs::read_to_string(&file)?)?;
    let found: Vec<_> = lines.iter().filter_map(|line| floats(&line["vector"])).collect();
    assert_eq!(found, daemon.client().vectors(&["one", "two"]).await?);
    daemon.stop().await
}

/// One whose file has a group that they are not in, and one who may write to another's file by a group.
async fn embed_gives_an_old_file_to_nobody_else() -> Outcome {
    let (_users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?;
    let daemon = setup.ready(&bus).await?;
    for (user, owner, mode) in [(OTHER, OTHER, 0o640), (MEMBER, OTHER, 0o664)] {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("old");
        fs::write(&file, "of an earlier run")?;
        chown(&file, Some(owner.id), Some(SERVICE.id))?;
        fs::set_permissions(&file, Permissions::from_mode(mode))?;
        chown(folder.path(), Some(user.id), None)?;
        let old = fs::metadata(&file)?;
        let mut command = clean(op_dbus());
        command.args(["embed", "--csv", "--bus", bus.address(), "--output"]).arg(&file).arg("x");
        finish(user.runs(&command), "").await?.success()?;
        let new = fs::metadata(&file)?;
        let rights = |file: &fs::Metadata| (file.uid(), file.gid(), file.mode(), file.ino());
        assert_eq!(rights(&new), rights(&old), "as {}", user.name);
        assert_eq!(fs::read_to_string(&file)?.lines().count(), 1);
        assert_eq!(fs::read_to_string(&file)?.split(',').count(), 384);
        assert_eq!(folder.path().read_dir()?.count(), 1);
    }
    daemon.stop().await
}
