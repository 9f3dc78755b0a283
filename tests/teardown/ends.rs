//! Terminations of containers.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::{cgroups, containerd::USR1_IMAGE};
use tokio::time::Instant;

use super::{
    pods::{POLITE, STUBBORN, container, pod, simple},
    scene::Scene,
};

pub async fn pod_that_exits_at_its_signal_succeeds(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("polite", 30, POLITE)).await?;
    let history = scene.follow(&pod).await?;
    let took = scene.take_down(&pod).await?;
    ensure!(took < Duration::from_secs(30), "it took {took:?}");
    let states = history.end().await?;
    ensure!(states.exit("main")? == (0, "Completed"), "{}", states.last());
    ensure!(states.phase() == "Succeeded", "{}", states.last());
    scene.event(&pod, "Killing").await.map(drop)
}

pub async fn container_gets_the_stop_signal_of_its_image(scene: &mut Scene) -> Result<()> {
    let mut usr1 = simple(
        "usr1",
        30,
        "trap 'echo usr1 >> /out/log; exit 0' USR1; trap 'echo term >> /out/log' TERM",
    );
    usr1["spec"]["containers"][0]["image"] = USR1_IMAGE.into();
    let pod = scene.run(usr1).await?;
    scene.take_down(&pod).await?;
    ensure!(scene.logged("usr1") == ["usr1"], "{:?}", scene.logged("usr1"));
    Ok(())
}

pub async fn container_that_ignores_its_signal_is_killed_after_its_grace_period(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("stubborn", 2, STUBBORN)).await?;
    let history = scene.follow(&pod).await?;
    let took = scene.take_down(&pod).await?;
    ensure!(took >= Duration::from_secs(2), "killed after {took:?} already");
    ensure!(scene.logged("stubborn") == ["term"], "{:?}", scene.logged("stubborn"));
    let states = history.end().await?;
    ensure!(states.exit("main")? == (137, "Error"), "{}", states.last());
    ensure!(states.phase() == "Failed", "{}", states.last());
    Ok(())
}

pub async fn frozen_container_is_thawed_and_gets_its_stop_signal(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("frozen", 100, POLITE)).await?;
    cgroups::freeze(&pod.cgroup)?;
    let took = scene.take_down(&pod).await?;
    // Without its signal it is killed after its grace period.
    ensure!(took < Duration::from_secs(100), "it took {took:?}");
    Ok(())
}

/// Each container exits only when the stops of all have begun. One after another, they would be killed.
pub async fn containers_stop_in_parallel(scene: &mut Scene) -> Result<()> {
    let have_begun = "until [ \"$(grep -c begins /out/log)\" -eq 3 ]; do sleep 0.1; done";
    let waits =
        |code: u8| format!("trap 'echo begins >> /out/log; {have_begun}; echo ends >> /out/log; exit {code}' TERM");
    let containers: Vec<_> = (0..3)
        .map(|code| container(&format!("c{code}"), &waits(code)))
        .collect();
    let pod = scene.run(pod("three", 60, &containers)).await?;
    let history = scene.follow(&pod).await?;
    scene.take_down(&pod).await?;
    let said = scene.logged("three");
    ensure!(said == [["begins"; 3], ["ends"; 3]].concat(), "{said:?}");
    let states = history.end().await?;
    for (code, reason) in [(0, "Completed"), (1, "Error"), (2, "Error")] {
        ensure!(states.exit(&format!("c{code}"))? == (code, reason), "{}", states.last());
    }
    ensure!(states.phase() == "Failed", "{}", states.last());
    Ok(())
}

pub async fn sidecars_are_stopped_last_in_reverse_order(scene: &mut Scene) -> Result<()> {
    let slow = |name: &str| {
        let work = format!("echo {name} begins >> /out/log; sleep 1; echo {name} ends >> /out/log");
        format!("trap '{work}; exit 0' TERM")
    };
    let sidecar = |name: &str| {
        let mut sidecar = container(name, &slow(name));
        sidecar["restartPolicy"] = "Always".into();
        sidecar
    };
    let mut sides = pod("sides", 30, &[container("main", &slow("main"))]);
    sides["spec"]["initContainers"] = json!([sidecar("first"), sidecar("second")]);
    let pod = scene.run(sides).await?;
    let history = scene.follow(&pod).await?;
    scene.take_down(&pod).await?;
    let said = scene.logged("sides");
    let expected = [
        "main begins",
        "main ends",
        "second begins",
        "second ends",
        "first begins",
        "first ends",
    ];
    ensure!(said == expected, "{said:?}");
    let states = history.end().await?;
    for name in ["main", "first", "second"] {
        ensure!(states.exit(name)? == (0, "Completed"), "{}", states.last());
    }
    ensure!(states.phase() == "Succeeded", "{}", states.last());
    Ok(())
}

/// The object is deleted at once, and the pod becomes an orphan: it gets the shortest stop.
pub async fn deletion_without_grace_period_leaves_nothing(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("forced", 3600, STUBBORN)).await?;
    scene.delete(&pod, Some(0)).await?;
    scene.gone_and_clean(&pod).await
}

pub async fn shortened_grace_period_takes_effect_during_the_wait(scene: &mut Scene) -> Result<()> {
    let pod = scene.run(simple("shortened", 3600, STUBBORN)).await?;
    let history = scene.follow(&pod).await?;
    let start = Instant::now();
    scene.delete(&pod, None).await?;
    scene.wait_for_line("shortened", "term").await?;
    scene.delete(&pod, Some(3)).await?;
    scene.gone(&pod).await?;
    let took = start.elapsed();
    scene.clean(&pod).await?;
    ensure!(took >= Duration::from_secs(3), "a grace period of 3 s took {took:?}");
    let states = history.end().await?;
    ensure!(states.exit("main")? == (137, "Error"), "{}", states.last());
    Ok(())
}

pub async fn twenty_pods_terminate_at_once(scene: &mut Scene) -> Result<()> {
    let pods = (0..20).map(|index| simple(&format!("many-{index}"), 10, POLITE));
    let pods = scene.run_all(pods.collect()).await?;
    for pod in &pods {
        scene.delete(pod, None).await?;
    }
    for pod in &pods {
        scene.gone(pod).await?;
    }
    for pod in &pods {
        scene.clean(pod).await?;
    }
    Ok(())
}
