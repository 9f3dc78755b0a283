//! The package on a machine with systemd: its files, and that the hardened service works. A machine has one service, so these run
//! one at a time.

mod installed;

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::TryFutureExt as _;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use testbed::{apiserver::MemApiServer, claims::Claim, wait::until_ok};
use tokio::time::{Instant, sleep};

use self::installed::{Installed, until};
use crate::cases::{
    Scene, Shared, claims,
    pods::{POLITE, STUBBORN, container, exec, hooked, pod, simple},
    scene::{PATIENCE, grace_end},
};

const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// The claims, for a guest.
pub fn cases() -> Vec<Claim<Shared<MemApiServer>>> {
    macro_rules! cases {
        ($($claim:ident),* $(,)?) => {
            vec![$(claims!(@MemApiServer, guest, Own, $claim, |scene, _| {
                // Reported at once: the guest may exit before the last claim.
                Box::pin($claim(scene).inspect_err(|error| eprintln!("{error:#}\n{}", installed::last_output())))
            })),*]
        };
    }
    cases![
        service_waits_until_the_node_has_joined_the_cluster,
        policy_rc_d_prevents_the_start_and_a_purge_leaves_nothing,
        pod_is_removed_completely_and_the_log_has_its_uid,
        hanging_service_is_restarted_and_one_with_a_wrong_flag_is_not,
        starting_kubelet_requests_the_handover_and_gets_its_pods,
        kubelet_that_starts_during_a_grace_period_waits_until_it_expires,
        upgrade_reruns_no_hook_and_keeps_all_deadlines,
        kubelet_unit_that_fails_is_stopped_masked_or_hangs_is_explained,
        // Last: they wait until the node has been up for five minutes.
        first_installation_observes_until_its_mode_is_set_and_an_upgrade_keeps_that,
        unresponsive_kubelet_is_stopped_through_its_unit_and_stays_stopped,
    ]
}

/// The unit has kubeadm's paths. Only the name of the Node is set.
async fn service_waits_until_the_node_has_joined_the_cluster(scene: &mut Scene) -> Result<()> {
    let service = Installed::first_installation()?;
    ensure!(service.systemctl(&["is-enabled", "pod-teardown"])? == "enabled");
    until("it says what it waits for", || {
        Ok(service
            .shown("StatusText")?
            .starts_with("waiting: --kubeconfig is missing"))
    })
    .await?;
    ensure!(service.shown("ActiveState")? == "active" && service.shown("NRestarts")? == "0");
    let shown = service.systemctl(&["status", "--no-pager", "pod-teardown"])?;
    ensure!(shown.contains("Status: \"waiting: "), "{shown}");

    service.set(&[("NODE_NAME", &scene.stage.node)])?;
    service.systemctl(&["restart", "pod-teardown"])?;
    let dirs = scene.stage.starter.dirs();
    service.create("/var/lib/kubelet", |at| symlink(&dirs.kubelet_root, at))?;
    service.create("/run/containerd/containerd.sock", |at| {
        symlink(scene.stage.containerd.socket(), at)
    })?;
    service.create("/etc/kubernetes/kubelet.conf", |at| {
        fs::write(at, scene.stage.api.node_kubeconfig(&scene.stage.node))
    })?;
    until("it observes", || {
        Ok(service.shown("StatusText")?.starts_with("observing: "))
    })
    .await?;
    ensure!(
        service.shown("NRestarts")? == "0",
        "it has waited, not started again and again"
    );
    service.asked(&["status"])?;

    let checked = Command::new("pod-teardown").args(["check", "--service"]).output()?;
    let output = String::from_utf8_lossy(&checked.stdout).into_owned();
    ensure!(
        output.contains("ok    delete pods") && !output.contains("FAIL"),
        "{output}"
    );
    Ok(())
}

async fn policy_rc_d_prevents_the_start_and_a_purge_leaves_nothing(_: &mut Scene) -> Result<()> {
    let policy = Installed::forbidding()?;
    let service = Installed::first_installation()?;
    ensure!(service.shown("ActiveState")? == "inactive", "policy-rc.d counts");
    drop(policy);
    for file in [
        "/usr/share/man/man8/pod-teardown-run.8.gz",
        "/usr/share/bash-completion/completions/pod-teardown",
        "/usr/share/pod-teardown/kubelet.service.d/10-pod-teardown.conf",
        "/usr/share/doc/pod-teardown/copyright",
    ] {
        ensure!(Path::new(file).is_file(), "{file}");
    }
    let completes = "source /usr/share/bash-completion/completions/pod-teardown; COMP_WORDS=(pod-teardown hand); \
                     COMP_CWORD=1; _pod__teardown pod-teardown hand pod-teardown; echo ${COMPREPLY[*]}";
    ensure!(installed::output("bash", &["-c", completes])? == "handover");
    let exposure = service.exposure()?;
    let level = exposure.rsplit_once(": ").context("a level")?.1;
    // A number and a word; a face follows.
    let level = Vec::from_iter(level.split_whitespace().take(2)).join(" ");
    let output = fs::read_to_string("/payload/service.md").context("read docs/reference/service.md")?;
    ensure!(
        output.contains(&format!("**{level}**")),
        "{level} is not in docs/reference/service.md"
    );

    service.systemctl(&["start", "pod-teardown"])?;
    installed::output("journalctl", &["--sync"])?;
    let logged = installed::output("journalctl", &["-b", "_PID=1", "-o", "cat"])?;
    let unknown = logged
        .lines()
        .find(|line| line.contains("pod-teardown.service:") && line.contains("ignoring"));
    ensure!(unknown.is_none(), "systemd does not know a directive: {unknown:?}");
    service.set(&[("MODE", "always")])?;
    let state = Path::new("/var/lib/pod-teardown");
    ensure!(state.is_dir());
    fs::write(state.join("kept"), "")?;
    installed::output("dpkg", &["--remove", "pod-teardown"])?;
    ensure!(!Path::new("/run/pod-teardown").exists(), "it has ended");
    ensure!(state.join("kept").exists() && Path::new("/etc/default/pod-teardown").exists());
    installed::output("dpkg", &["--purge", "pod-teardown"])?;
    ensure!(!state.exists() && !Path::new("/etc/default/pod-teardown").exists());
    ensure!(!Path::new("/usr/bin/pod-teardown").exists());
    Ok(())
}

/// Without a kubelet: a service that acts would terminate the pod.
async fn first_installation_observes_until_its_mode_is_set_and_an_upgrade_keeps_that(scene: &mut Scene) -> Result<()> {
    installed::wait_until_takeover_is_allowed().await?;
    let service = Installed::first_installation()?;
    let settings = fs::read_to_string(installed::SETTINGS)?;
    ensure!(!settings.contains("\nPOD_TEARDOWN_"), "it has the defaults: {settings}");
    service.add(&Installed::of_scene(scene)?)?;
    service.add(&[("TAKE_OVER_AFTER", "5s".to_owned())])?;
    service.systemctl(&["restart", "pod-teardown"])?;
    service.works().await?;
    let is_observing = || Ok(service.asked(&["status"])?.starts_with("Role      observing"));
    until("it observes", is_observing).await?;
    let web = scene.run(simple("web", 5, POLITE)).await?;
    let before = scene.object("web").await?;
    scene.delete(&web, None).await?;
    service.upgrade("next")?;
    service.works().await?;
    until("it observes after the upgrade", is_observing).await?;
    sleep(Duration::from_secs(10)).await;
    let now = scene.object("web").await?;
    ensure!(now["status"] == before["status"], "it touches nothing: {now}");

    service.add(&[("MODE", "auto".to_owned())])?;
    service.systemctl(&["restart", "pod-teardown"])?;
    scene.gone_and_clean(&web).await?;
    service.upgrade("now")?;
    ensure!(fs::read_to_string(installed::SETTINGS)?.contains("\nPOD_TEARDOWN_MODE=auto\n"));

    service.add(&[("MODE", "observe".to_owned())])?;
    service.systemctl(&["restart", "pod-teardown"])?;
    service.works().await?;
    until("it observes again", is_observing).await
}

async fn pod_is_removed_completely_and_the_log_has_its_uid(scene: &mut Scene) -> Result<()> {
    let service = Installed::at_work(scene).await?;
    let mut main = container("main", "trap 'exit 0' TERM; echo x > /memory/x");
    main["lifecycle"] = json!({ "preStop": exec("echo hook >> /out/log") });
    main["volumeMounts"] = json!([
        { "name": "disk", "mountPath": "/disk" },
        { "name": "disk", "mountPath": "/part", "subPath": "a/part" },
        { "name": "memory", "mountPath": "/memory" },
        { "name": "secret", "mountPath": "/secret" },
    ]);
    let mut web = pod("web", 20, &[main]);
    web["spec"]["volumes"] = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory" } },
        { "name": "secret", "secret": { "secretName": "s" } },
    ]);
    let web = scene.run(web).await?;
    let raw = installed::map_block(scene, &web)?;
    let memory = web.volumes.get("memory").context("volume memory")?;
    let mut holder = Command::new("sleep").arg("300").current_dir(memory).spawn()?;
    scene.delete(&web, None).await?;
    let held = format!("process {} \"sleep\" (working directory)", holder.id());
    let why = ["why", &*scene.name("web")];
    let named = until("it names who holds the volume", || {
        Ok(service.asked(&why).unwrap_or_default().contains(&held))
    });
    let named = named.await;
    holder.kill().and_then(|()| holder.wait())?;
    named?;
    scene.gone_and_clean(&web).await?;
    ensure!(scene.logged("web") == ["hook"]);
    ensure!(!raw.is_locked()?, "the loop device is off its file");

    let of_pod = format!("POD_UID={}", web.uid());
    let journal = || {
        let text = installed::output("journalctl", &["-o", "json", &of_pod])?;
        let lines = text.lines().map(serde_json::from_str::<serde_json::Value>);
        anyhow::Ok(lines.collect::<Result<Vec<_>, _>>()?)
    };
    until("the journal has the pod's name", || {
        let lines = journal()?;
        let mut said = lines.iter().filter_map(|line| line["MESSAGE"].as_str());
        Ok(said.any(|line| line.contains("pod.name=web")))
    })
    .await?;
    for line in &journal()? {
        ensure!(
            line["POD_NAME"] == "web" && line["_SYSTEMD_UNIT"] == "pod-teardown.service",
            "{line}"
        );
    }
    until("systemctl status shows pods", || {
        Ok(service.shown("StatusText")?.ends_with("on this node, none terminating"))
    })
    .await?;
    let ours = fs::read_link(format!("/proc/{}/ns/mnt", service.pid()?))?;
    ensure!(ours == fs::read_link("/proc/1/ns/mnt")?, "{}", ours.display());
    Ok(())
}

async fn hanging_service_is_restarted_and_one_with_a_wrong_flag_is_not(scene: &mut Scene) -> Result<()> {
    let service = Installed::at_work(scene).await?;
    service.drop_in("watchdog", "[Service]\nWatchdogSec=6s\nTimeoutAbortSec=1s\n")?;
    service.systemctl(&["restart", "pod-teardown"])?;
    service.works().await?;
    let stuck = service.pid()?;
    installed::output("kill", &["-STOP", &stuck])?;
    until("systemd starts it again", || Ok(service.shown("NRestarts")? == "1")).await?;
    service.works().await?;
    ensure!(service.pid()? != stuck);

    service.drop_in("own", "[Service]\nPrivateMounts=yes\n")?;
    service.systemctl(&["restart", "pod-teardown"]).ok();
    until("it touches nothing and says why", || {
        let status = service.shown("StatusText")?;
        Ok(status.starts_with("waiting: ") && status.contains("not in the mount namespace of"))
    })
    .await?;

    service.drop_in("own", "[Service]\nEnvironment=POD_TEARDOWN_TAKE_OVER_AFTER=soon\n")?;
    service.systemctl(&["restart", "pod-teardown"]).ok();
    until("it refuses", || Ok(service.shown("ActiveState")? == "failed")).await?;
    ensure!(service.shown("ExecMainStatus")? == "64");
    until("it names the flag", || {
        let said = installed::output("journalctl", &["-u", "pod-teardown", "-n", "20", "-o", "cat"])?;
        Ok(said.contains("--take-over-after"))
    })
    .await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(service.shown("ActiveState")? == "failed", "it is not started again");
    Ok(())
}

/// A unit with a kubelet of this node that does nothing, and `more` lines.
fn kubelet(service: &Installed, scene: &Scene, more: &str) -> Result<()> {
    let root = scene.stage.starter.dirs().kubelet_root.display().to_string();
    service.create("/run/kubelet-of-test/kubelet", |at| symlink("/bin/sh", at))?;
    service.create("/run/wait", |at| {
        nix::unistd::mkfifo(at, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into)
    })?;
    let command = format!("/run/kubelet-of-test/kubelet -c 'read forever </run/wait' --root-dir={root}");
    service.unit("kubelet.service", &format!("[Service]\nExecStart={command}\n{more}"))
}

async fn starting_kubelet_requests_the_handover_and_gets_its_pods(scene: &mut Scene) -> Result<()> {
    let service = Installed::at_work(scene).await?;
    service.add_drop_in_of_kubelet()?;
    kubelet(&service, scene, "")?;
    service.systemctl(&["start", "kubelet"])?;
    until("its process is seen", || {
        Ok(service.shown("StatusText")?.contains("blocked: "))
    })
    .await?;
    until("the handover is logged", || {
        let said = installed::output("journalctl", &["-u", "kubelet", "-o", "cat"])?;
        Ok(said.contains("The node is handed over: no work is in progress."))
    })
    .await?;

    let web = scene.run(simple("web", 5, POLITE)).await?;
    let before = scene.object("web").await?;
    scene.delete(&web, None).await?;
    sleep(Duration::from_secs(5)).await;
    let now = scene.object("web").await?;
    ensure!(
        now["status"] == before["status"],
        "nothing is changed while it lives: {now}"
    );
    service.systemctl(&["stop", "kubelet"])?;
    scene.gone_and_clean(&web).await
}

/// With the drop-in and a stop in progress: the kubelet's unit starts when all pods are at a safe point.
async fn kubelet_that_starts_during_a_grace_period_waits_until_it_expires(scene: &mut Scene) -> Result<()> {
    let service = Installed::at_work(scene).await?;
    service.add_drop_in_of_kubelet()?;
    kubelet(&service, scene, "")?;
    let handed_back = || {
        let said = installed::output("journalctl", &["-u", "kubelet", "-o", "cat"])?;
        anyhow::Ok(said.matches("The node is handed over: no work is in progress.").count())
    };
    let grace = Duration::from_secs(15);
    let stubborn = scene.run(simple("stubborn", 15, STUBBORN)).await?;
    let (before, begun) = (handed_back()?, Instant::now());
    scene.delete(&stubborn, None).await?;
    scene.wait_for_line("stubborn", "term").await?;
    service.systemctl(&["start", "kubelet"])?;
    let took = begun.elapsed();
    ensure!(took >= grace, "{took:?}");
    until("the handover reports a safe point", || Ok(handed_back()? == before + 1)).await?;

    let left = scene.object("stubborn").await?;
    sleep(Duration::from_secs(3)).await;
    let now = scene.object("stubborn").await?;
    ensure!(now == left, "nothing is changed while it lives: {now}");
    service.systemctl(&["stop", "kubelet"])?;
    scene.gone_and_clean(&stubborn).await
}

/// While this file exists, the kubelet of [`kubelet_with_health`] answers at healthz.
const HEALTHY: &str = "/run/kubelet-of-test/healthy";

/// A unit with a kubelet that only answers at healthz. Only the answer of such a process counts.
fn kubelet_with_health(service: &Installed, scene: &Scene, more: &str) -> Result<()> {
    const PROGRAM: &str = r#"
        use IO::Socket::INET;
        use IO::Select;
        my $health;
        while (1) {
            if (-e "/run/kubelet-of-test/healthy") {
                $health ||= IO::Socket::INET->new(LocalAddr => "127.0.0.1:10248", Listen => 5, ReuseAddr => 1) or die;
                IO::Select->new($health)->can_read(0.2) or next;
                my $peer = $health->accept or next;
                sysread $peer, my $asked, 1024;
                print $peer "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                close $peer;
            } else {
                close $health if $health;
                undef $health;
                select undef, undef, undef, 0.2;
            }
        }
    "#;
    let root = scene.stage.starter.dirs().kubelet_root.display().to_string();
    service.create("/run/kubelet-of-test/kubelet", |at| symlink("/usr/bin/perl", at))?;
    service.create("/run/kubelet-of-test/program", |at| fs::write(at, PROGRAM))?;
    let command = format!("/run/kubelet-of-test/kubelet /run/kubelet-of-test/program --root-dir={root}");
    service.unit("kubelet.service", &format!("[Service]\nExecStart={command}\n{more}"))
}

/// It answers at healthz for a while and renews no Lease. systemd would restart it if it were only killed.
async fn unresponsive_kubelet_is_stopped_through_its_unit_and_stays_stopped(scene: &mut Scene) -> Result<()> {
    installed::wait_until_takeover_is_allowed().await?;
    let settings = [("MODE", "auto"), ("TAKE_OVER_AFTER", "5s"), ("FENCE_KUBELET", "true")];
    let service = Installed::at_work_with(scene, &settings).await?;
    kubelet_with_health(&service, scene, "Restart=always\nRestartSec=100ms\n")?;
    service.systemctl(&["start", "kubelet"])?;
    until("it is not stopped, as its health was never seen", || {
        let output = service.asked(&["status"])?;
        Ok(output.contains("healthz has not answered"))
    })
    .await?;
    fs::write(HEALTHY, "")?;
    until("its health is seen", || {
        Ok(service.asked(&["status"])?.contains("healthz alive"))
    })
    .await?;
    let web = scene.run(simple("web", 5, POLITE)).await?;
    let before = scene.object("web").await?;
    scene.delete(&web, None).await?;
    fs::remove_file(HEALTHY)?;
    let state = || installed::output("systemctl", &["show", "--value", "-p", "ActiveState", "kubelet"]);
    let late = Instant::now() + Duration::from_secs(60);
    while !["inactive", "failed"].contains(&&*state()?) {
        let now = scene.object("web").await?;
        let runs = state()? == "active";
        if Instant::now() > late {
            let log = installed::output("journalctl", &["-u", "pod-teardown", "-n", "30", "-o", "short-precise"])?;
            anyhow::bail!("never fenced: {}; {log}", service.asked(&["status"])?);
        }
        ensure!(
            !runs || now["status"] == before["status"],
            "touched while it is there: {now}"
        );
        sleep(Duration::from_millis(200)).await;
    }
    scene.gone_and_clean(&web).await?;
    ensure!(["inactive", "failed"].contains(&&*state()?), "{}", state()?);
    let output = service.asked(&["status"])?;
    ensure!(
        output.contains("process down")
            && output.contains("kubelet.service was stopped because its kubelet did not work"),
        "{output}"
    );
    Ok(())
}

/// As its sandbox lets the service ask systemd and run journalctl.
async fn kubelet_unit_that_fails_is_stopped_masked_or_hangs_is_explained(scene: &mut Scene) -> Result<()> {
    const FAILS: &str = "/run/kubelet-of-test/fails";
    const LINE: &str = r#"E1129 01:01:29.482843    8719 run.go:72] "command failed" err="failed to parse kubelet flag: unknown flag: --no-such-flag""#;
    let service = Installed::at_work_with(scene, &[("MODE", "auto"), ("TAKE_OVER_AFTER", "5s")]).await?;
    let status_has = async |text: &str| until(text, || Ok(service.asked(&["status"])?.contains(text))).await;
    service.create(FAILS, |at| fs::write(at, format!("echo '{LINE}' >&2; exit 1\n")))?;
    let unit = format!(
        "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/bin/sh {FAILS}\nRestart=always\nRestartSec=1s\n"
    );
    service.unit("kubelet.service", &unit)?;
    service.systemctl(&["start", "kubelet"])?;
    status_has("kubelet.service fails and is restarted each time").await?;
    status_has("exit code 1; last error: failed to parse kubelet flag: unknown flag: --no-such-flag").await?;
    until("check has the error of the kubelet, too", || {
        let checked = Command::new("pod-teardown").args(["check", "--service"]).output()?;
        let output = String::from_utf8_lossy(&checked.stdout).into_owned();
        Ok(output.contains("WARN  kubelet") && output.contains("unknown flag: --no-such-flag"))
    })
    .await?;

    service.systemctl(&["stop", "kubelet"])?;
    status_has("kubelet.service is stopped").await?;
    let mask = "/etc/systemd/system/kubelet.service";
    service.create(mask, |at| symlink("/dev/null", at))?;
    service.systemctl(&["daemon-reload"])?;
    status_has("kubelet.service is masked").await?;
    status_has("systemctl unmask kubelet.service").await?;
    fs::remove_file(mask)?;

    kubelet(&service, scene, "")?;
    service.systemctl(&["start", "kubelet"])?;
    service.systemctl(&["kill", "--signal=STOP", "kubelet"])?;
    status_has("which a signal has stopped").await?;
    let pid = installed::output("systemctl", &["show", "--value", "-p", "MainPID", "kubelet"])?;
    status_has(&format!("kill -CONT {pid}")).await?;
    service.systemctl(&["kill", "--signal=CONT", "kubelet"])?;
    service.systemctl(&["stop", "kubelet"]).map(drop)
}

fn end_of_grace_period(service: &Installed, scene: &Scene, pod: &str) -> Result<(Timestamp, Option<Timestamp>)> {
    let pod = format!("{}/{pod}", scene.namespace);
    let traces = service.asked(&["timeline", &pod, "-ojson"])?;
    grace_end(&traces)
}

/// One pod is in its hook and one waits after its signal when the package is upgraded.
async fn upgrade_reruns_no_hook_and_keeps_all_deadlines(scene: &mut Scene) -> Result<()> {
    let service = Installed::at_work(scene).await?;
    let hook = exec("echo hook >> /out/log; sleep 12; echo done >> /out/log");
    // Longer than any upgrade.
    let pods = vec![hooked("hooked", 600, POLITE, &hook), simple("stubborn", 600, STUBBORN)];
    let pods = scene.run_all(pods).await?;
    for pod in &pods {
        scene.delete(pod, None).await?;
    }
    scene.wait_for_line("hooked", "hook").await?;
    scene.wait_for_line("stubborn", "term").await?;
    let before = service.pid()?;
    let (grace_end, _) = end_of_grace_period(&service, scene, "stubborn")?;
    service.upgrade("next")?;
    ensure!(service.version()?.contains("next"), "{}", service.version()?);
    ensure!(service.pid()? != before && service.shown("ActiveState")? == "active");

    let [hooked, stubborn] = &pods[..] else {
        unreachable!("two pods in, two out")
    };
    scene.gone_and_clean(hooked).await?;
    ensure!(
        scene.logged("hooked") == ["hook", "done"],
        "{:?}",
        scene.logged("hooked")
    );
    let resumes = async || end_of_grace_period(&service, scene, "stubborn");
    let (end_now, resumed) = until_ok(PATIENCE, resumes).await?;
    ensure!(resumed.is_some(), "the new version resumes the termination");
    ensure!(
        (end_now - SECOND..=end_now + SECOND).contains(&grace_end),
        "{grace_end}, then {end_now}"
    );
    scene.delete(stubborn, Some(1)).await?;
    scene.gone_and_clean(stubborn).await?;
    let code = service.systemctl(&["is-failed", "pod-teardown"]);
    code.err().context("it has failed").map(drop)
}
