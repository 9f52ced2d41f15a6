//! What the doctor says of the service's folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use super::{check, command, findings, text};
use crate::harness::Outcome;
use crate::harness::command::{clean, finish};
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;
use crate::harness::users::{SERVICE, Users};

tests! {
    a_closed_folder_is_told_with_owner_and_mode: [Bus, Low],
    who_is_on_a_list_may_use_the_folder: [Bus, Root, Acl],
}

async fn a_closed_folder_is_told_with_owner_and_mode() -> Outcome {
    let setup = Setup::real("low")?;
    let cache = setup.path("cache");
    fs::create_dir(&cache)?;
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777))?;
    let found = findings(&setup, 1, &["--quick"]).await?;
    let folder = check(&found["general"], "cache_dir", "wrong")?;
    assert!(text(&folder["found"]).contains("mode 0777"), "{folder}");
    assert_eq!(folder["next"], format!("type `chmod o-w {}`", cache.display()));
    Ok(())
}

/// Mode and owner say that the service's user may not.
async fn who_is_on_a_list_may_use_the_folder() -> Outcome {
    let (users, bus) = Users::on_a_bus(&[]).await?;
    let setup = Setup::sim()?.of_the_service()?;
    let cache = setup.path("cache");
    fs::create_dir(&cache)?;
    let doctor = command(&setup, bus.address(), &["--quick", "--json"])?;
    for (bits, state) in [("r-x", "unchecked"), ("rwx", "ok")] {
        let mut list = clean("setfacl");
        list.args(["--modify", &format!("user:{}:{bits}", SERVICE.id)]).arg(&cache);
        finish(list, "").await?.success()?;
        let run = finish(users.known_to(&SERVICE.runs(&doctor), ""), "").await?;
        let found: Value = serde_json::from_str(&run.stdout)?;
        check(&found["general"], "cache_dir", state)?;
    }
    Ok(())
}
