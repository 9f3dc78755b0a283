//! The installed package, and files of a test on the node.

use std::{
    cell::RefCell,
    fs,
    io::{self, Write as _},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use pod_teardown::handover::role::BOOT_GRACE;
use testbed::{mounts, pods::StartedPod};
use tokio::time::{Instant, sleep};

use crate::cases::Scene;

/// Packages in the guest.
const PACKAGES: &str = "/payload/packages";
/// The settings of the service.
pub const SETTINGS: &str = "/etc/default/pod-teardown";
const DROP_IN: &str = "/etc/systemd/system/kubelet.service.d/10-pod-teardown.conf";
const POLICY: &str = "/usr/sbin/policy-rc.d";
const UNITS: &str = "/run/systemd/system";
/// State directory of the service.
const STATE: &str = "/var/lib/pod-teardown";
/// An emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Status of the service at the end of the last test.
static LAST_OUTPUT: Mutex<String> = Mutex::new(String::new());

/// The installed package, and files of a test. Units, drop-ins and state are removed on drop. The package and its settings stay for
/// the next test: an installation takes long on an emulated machine.
pub struct Installed {
    made: RefCell<Vec<PathBuf>>,
}

/// Services may not start.
pub struct Forbidden;

/// A raw block device of a pod.
pub struct Raw {
    map: PathBuf,
    devices: Vec<String>,
}

/// Runs a program and returns its output.
pub fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()
        .with_context(|| format!("run {program}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        bail!("{program} {arguments:?}: {}: {out} {err}", output.status);
    }
    Ok(text(&output.stdout))
}

/// Status of the service at the end of the last test.
pub fn last_output() -> String {
    LAST_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Waits until the condition holds.
pub async fn until(what: &str, holds: impl Fn() -> Result<bool>) -> Result<()> {
    let late = Instant::now() + PATIENCE;
    while !holds()? {
        if Instant::now() > late {
            let log = output("journalctl", &["-u", "pod-teardown", "-n", "15", "-o", "cat"])?;
            bail!("never: {what}; {}; {log}", shown("StatusText")?);
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Waits until the node has been up for [`BOOT_GRACE`]: no agent takes over earlier.
pub async fn wait_until_takeover_is_allowed() -> Result<()> {
    let uptime = fs::read_to_string("/proc/uptime").context("read /proc/uptime")?;
    let uptime: f64 = uptime.split(' ').next().unwrap_or_default().parse()?;
    sleep(BOOT_GRACE.saturating_sub(Duration::from_secs_f64(uptime))).await;
    Ok(())
}

fn shown(property: &str) -> Result<String> {
    output("systemctl", &["show", "--value", "-p", property, "pod-teardown"])
}

/// Maps a device like a kubelet: a bind mount of the device, and a loop device on that, which keeps its number.
pub fn map_block(scene: &Scene, pod: &StartedPod) -> Result<Raw> {
    let root = &scene.stage.starter.dirs().kubelet_root;
    let disk = scene.stage.containerd.workspace().dir().join("disk.img");
    fs::File::create(&disk)?.set_len(8 << 20)?;
    let attach = |file: &Path| output("losetup", &["--find", "--show", file.to_str().context("UTF-8")?]);
    let device = attach(&disk)?;
    let map = root
        .join("plugins/kubernetes.io~local-volume/volumeDevices/pv-1")
        .join(pod.uid());
    let link = root
        .join("pods")
        .join(pod.uid())
        .join("volumeDevices/kubernetes.io~local-volume/pv-1");
    for file in [&map, &link] {
        fs::create_dir_all(file.parent().context("a parent")?)?;
    }
    fs::write(&map, "")?;
    mounts::bind(Path::new(&device), &map)?;
    symlink(&device, &link)?;
    let lock = attach(&map)?;
    let raw = Raw {
        map,
        devices: vec![lock, device],
    };
    ensure!(raw.is_locked()?);
    Ok(raw)
}

impl Raw {
    /// Whether the second loop device still has the mapped file.
    pub fn is_locked(&self) -> Result<bool> {
        let all = output("losetup", &["--list", "--noheadings", "--output", "BACK-FILE"])?;
        Ok(all
            .lines()
            .any(|file| file.trim().starts_with(&*self.map.to_string_lossy())))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        for device in &self.devices {
            output("losetup", &["-d", device]).ok();
        }
    }
}

impl Installed {
    /// Purges the package and installs version `now`.
    pub fn first_installation() -> Result<Self> {
        output("dpkg", &["--purge", "pod-teardown"])?;
        Self::current()
    }

    /// Version `now`. Installs it unless it is installed.
    fn current() -> Result<Self> {
        let installed = Self {
            made: RefCell::default(),
        };
        let status = ["--show", "--showformat=${db:Status-Status} ${Version}", "pod-teardown"];
        if !output("dpkg-query", &status).is_ok_and(|shown| shown == "installed 0.0.1+now") {
            installed.upgrade("now")?;
        }
        Ok(installed)
    }

    /// The package with settings to take down the scene's pods.
    pub async fn at_work(scene: &Scene) -> Result<Self> {
        Self::at_work_with(scene, &[("MODE", "always")]).await
    }

    pub async fn at_work_with(scene: &Scene, more: &[(&str, &str)]) -> Result<Self> {
        let installed = Self::current()?;
        installed.set(more)?;
        installed.add(&Self::of_scene(scene)?)?;
        installed.systemctl(&["restart", "pod-teardown"])?;
        installed.works().await?;
        Ok(installed)
    }

    /// Settings that lead to the scene's node.
    pub fn of_scene(scene: &Scene) -> Result<[(&'static str, String); 5]> {
        let dir = scene.stage.containerd.workspace().dir().join("service");
        fs::create_dir_all(&dir)?;
        let kubeconfig = dir.join("kubeconfig");
        fs::write(&kubeconfig, scene.stage.api.node_kubeconfig(&scene.stage.node))?;
        let dirs = scene.stage.starter.dirs();
        Ok([
            ("KUBECONFIG", kubeconfig.display().to_string()),
            ("NODE_NAME", scene.stage.node.clone()),
            ("CRI_ENDPOINT", scene.stage.containerd.endpoint()),
            ("KUBELET_ROOT", dirs.kubelet_root.display().to_string()),
            ("KUBELET_CONFIG", dirs.config_file().display().to_string()),
        ])
    }

    /// Waits until it watches its pods.
    pub async fn works(&self) -> Result<()> {
        let watches = || {
            let status = self.asked(&["status", "-ojson"]).unwrap_or_default();
            Ok(status.contains("\"watching\""))
        };
        until("it watches", watches).await
    }

    /// Prevents the start of services until the result is dropped.
    pub fn forbidding() -> Result<Forbidden> {
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))?;
        Ok(Forbidden)
    }

    /// Installs another version, or the same one again.
    pub fn upgrade(&self, package: &str) -> Result<()> {
        output("dpkg", &["--install", &format!("{PACKAGES}/{package}.deb")]).map(drop)
    }

    /// Writes the package's settings file.
    pub fn set(&self, settings: &[(&str, &str)]) -> Result<()> {
        let lines = settings
            .iter()
            .map(|(name, value)| format!("POD_TEARDOWN_{name}={value}\n"));
        fs::write(SETTINGS, lines.collect::<String>()).context("write the settings")
    }

    pub fn add(&self, settings: &[(&str, String)]) -> Result<()> {
        let mut file = fs::OpenOptions::new().append(true).open(SETTINGS)?;
        for (name, value) in settings {
            writeln!(file, "POD_TEARDOWN_{name}={value}")?;
        }
        Ok(())
    }

    /// Puts the drop-in of the documentation where systemd reads it.
    pub fn add_drop_in_of_kubelet(&self) -> Result<()> {
        let shipped = "/usr/share/pod-teardown/kubelet.service.d/10-pod-teardown.conf";
        self.create(DROP_IN, |at| fs::copy(shipped, at).map(drop))?;
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    /// Creates a file that is removed on drop.
    pub fn create(&self, path: &str, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
        let path = Path::new(path);
        fs::create_dir_all(path.parent().context("a parent")?)?;
        make(path).with_context(|| format!("make {}", path.display()))?;
        self.made.borrow_mut().push(path.to_owned());
        Ok(())
    }

    /// Adds a drop-in to the unit.
    pub fn drop_in(&self, name: &str, text: &str) -> Result<()> {
        self.unit(&format!("pod-teardown.service.d/{name}.conf"), text)
    }

    /// Adds a unit.
    pub fn unit(&self, name: &str, text: &str) -> Result<()> {
        self.create(&format!("{UNITS}/{name}"), |at| fs::write(at, text))?;
        self.systemctl(&["daemon-reload"]).map(drop)
    }

    /// Runs systemctl.
    pub fn systemctl(&self, arguments: &[&str]) -> Result<String> {
        output("systemctl", arguments)
    }

    /// Reads a property of the unit.
    pub fn shown(&self, property: &str) -> Result<String> {
        shown(property)
    }

    /// PID of the service.
    pub fn pid(&self) -> Result<String> {
        self.shown("MainPID")
    }

    /// Output of the installed program.
    pub fn asked(&self, arguments: &[&str]) -> Result<String> {
        output("/usr/bin/pod-teardown", arguments)
    }

    pub fn version(&self) -> Result<String> {
        output("dpkg-query", &["--show", "pod-teardown"])
    }

    /// Hardening of the unit as analyzed by systemd.
    pub fn exposure(&self) -> Result<String> {
        output("systemd-analyze", &["security", "--no-pager", "pod-teardown.service"])
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let status = output("systemctl", &["status", "--no-pager", "-n", "40", "pod-teardown"]);
        let outputs = self.asked(&["status"]);
        let outputs = [status, outputs].map(|outputs| outputs.unwrap_or_else(|error| format!("{error:#}")));
        *LAST_OUTPUT.lock().unwrap_or_else(PoisonError::into_inner) = outputs.join("\n");
        output("systemctl", &["stop", "kubelet", "pod-teardown"]).ok();
        fs::remove_dir_all(STATE).ok();
        for path in self.made.borrow().iter() {
            fs::remove_file(path).ok();
        }
        output("systemctl", &["daemon-reload"]).ok();
        output("systemctl", &["reset-failed"]).ok();
    }
}

impl Drop for Forbidden {
    fn drop(&mut self) {
        fs::remove_file(POLICY).ok();
    }
}
