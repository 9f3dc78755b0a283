//! Images built from the machine's static busybox, without a registry.
//!
//! Each has one layer. They are imported as one archive in the format of `docker save`.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::{ImageSpec, ImageStatusRequest};
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};
use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tonic::transport::Channel;

use super::Paths;
use super::binary::{Binary, output};

/// Every busybox applet by its name, in /bin.
pub const TOOL_IMAGE: &str = "docker.io/testbed/busybox:1";
/// The same, whose stop signal is SIGUSR1.
pub const USR1_IMAGE: &str = "docker.io/testbed/usr1:1";
/// Image of sandboxes.
pub const PAUSE_IMAGE: &str = "docker.io/testbed/pause:1";

const BUSYBOX: &str = "/bin/busybox";
/// A shell script for a container: one process that never wakes up, and ends with 0 on SIGTERM.
///
/// It waits on a FIFO of the image, which does not reach its end while it is open for both reading and writing.
pub const POLITE: &str = "trap 'exit 0' TERM INT; while :; do read -r _ <>/wait; done";

/// The CRI is notified of an import by an event; the rest is for a busy machine.
const NOTICE_LIMIT: Duration = Duration::from_secs(60);

/// Builds and imports the images; the CRI has them when this returns.
pub async fn import(binary: &Binary, paths: &Paths, images: ImageServiceClient<Channel>) -> Result<()> {
    let archive = paths.config.with_file_name("images.tar");
    let busybox = fs::read(BUSYBOX).with_context(|| format!("read {BUSYBOX}: install Debian's busybox-static"))?;
    let applets = output(Command::new(BUSYBOX).arg("--list")).await?;
    fs::write(&archive, docker_archive(&busybox, &applets)?).with_context(|| format!("write {}", archive.display()))?;
    let mut ctr = Command::from(binary.command("ctr"));
    ctr.arg("--address")
        .arg(&paths.socket)
        .args(["--namespace", "k8s.io", "images", "import"])
        .arg(&archive);
    output(&mut ctr).await?;
    for image in [TOOL_IMAGE, USR1_IMAGE, PAUSE_IMAGE] {
        wait_until_known(images.clone(), image).await?;
    }
    fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))
}

async fn wait_until_known(mut images: ImageServiceClient<Channel>, image: &str) -> Result<()> {
    let deadline = Instant::now() + NOTICE_LIMIT;
    let spec = ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    };
    loop {
        let request = ImageStatusRequest {
            image: Some(spec.clone()),
            verbose: false,
        };
        let answer = images
            .image_status(request)
            .await
            .with_context(|| format!("look up image {image}"))?;
        if answer.into_inner().image.is_some() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("image {image} was imported, but the CRI does not know it after {NOTICE_LIMIT:?}");
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// One archive with all images.
fn docker_archive(busybox: &[u8], applets: &str) -> Result<Vec<u8>> {
    let layer = layer(busybox, applets).context("pack the layer of the images")?;
    let tools = config(&["/bin/sh"], &layer);
    let pause = config(&["/bin/sh", "-c", POLITE], &layer).to_string();
    let mut usr1 = tools.clone();
    usr1["config"]["StopSignal"] = "SIGUSR1".into();
    let (tools, usr1) = (tools.to_string(), usr1.to_string());
    let manifest = json!([
        {"Config": "busybox.json", "RepoTags": [TOOL_IMAGE], "Layers": ["layer.tar"]},
        {"Config": "usr1.json", "RepoTags": [USR1_IMAGE], "Layers": ["layer.tar"]},
        {"Config": "pause.json", "RepoTags": [PAUSE_IMAGE], "Layers": ["layer.tar"]},
    ])
    .to_string();
    let mut archive = Builder::new(Vec::new());
    for (name, content) in [
        ("layer.tar", layer.as_slice()),
        ("busybox.json", tools.as_bytes()),
        ("usr1.json", usr1.as_bytes()),
        ("pause.json", pause.as_bytes()),
        ("manifest.json", manifest.as_bytes()),
    ] {
        archive.append_data(&mut header(EntryType::Regular, 0o644, content.len()), name, content)?;
    }
    archive.into_inner().context("pack the images")
}

fn layer(busybox: &[u8], applets: &str) -> std::io::Result<Vec<u8>> {
    let mut layer = Builder::new(Vec::new());
    for (dir, mode) in [
        ("bin", 0o755),
        ("dev", 0o755),
        ("etc", 0o755),
        ("proc", 0o755),
        ("sys", 0o755),
        ("tmp", 0o1777),
    ] {
        layer.append_data(&mut header(EntryType::Directory, mode, 0), dir, std::io::empty())?;
    }
    layer.append_data(
        &mut header(EntryType::Regular, 0o755, busybox.len()),
        "bin/busybox",
        busybox,
    )?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        let mut link = header(EntryType::Symlink, 0o777, 0);
        layer.append_link(&mut link, Path::new("bin").join(applet), "busybox")?;
    }
    for (name, text) in [
        ("etc/passwd", "root:x:0:0:root:/:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
    ] {
        layer.append_data(
            &mut header(EntryType::Regular, 0o644, text.len()),
            name,
            text.as_bytes(),
        )?;
    }
    layer.append_data(&mut header(EntryType::Fifo, 0o600, 0), "wait", std::io::empty())?;
    layer.into_inner()
}

fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size as u64);
    header
}

fn config(entrypoint: &[&str], layer: &[u8]) -> Value {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
    })
}

fn digest(bytes: &[u8]) -> String {
    let sum = ring::digest::digest(&ring::digest::SHA256, bytes);
    sum.as_ref()
        .iter()
        .fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}
