//! Volumes and devices of drivers.

use std::fs;

use anyhow::{Result, ensure};
use testbed::{
    drivers::{Behavior, CsiCall},
    wait::eventually,
};
use tokio::process::Command;
use tonic::Code;

use super::{
    drivers::{Drivers, demand},
    pods::{POLITE, simple},
    scene::{PATIENCE, Scene},
};

/// While the driver fails, the pod waits and its event has the cause. The device is unprepared all the same.
pub async fn volume_may_be_attached_elsewhere_only_after_its_driver_has_unstaged_it(scene: &mut Scene) -> Result<()> {
    let drivers = Drivers::start(&scene.stage)?;
    let mut web = simple("stateful", 10, POLITE);
    demand(&mut web);
    let (pod, storage) = drivers.run(scene, web, None).await?;
    let stage = &scene.stage;
    ensure!(
        storage.is_in_use(stage).await? && storage.mounted()?.len() == 2,
        "{storage:?}"
    );

    let is_unstage = |call: &CsiCall| matches!(call, CsiCall::Unstage { .. });
    let refuses = Behavior::Fails(Code::Internal, "the array is away".to_owned());
    drivers.csi().behave_if(is_unstage, refuses);
    scene.delete(&pod, None).await?;
    let event = scene.event(&pod, "FailedUnMount").await?["message"].to_string();
    ensure!(
        event.contains("the array is away") && event.contains(&storage.handle),
        "{event}"
    );
    eventually(PATIENCE, "four calls", async || {
        let in_use = storage.is_in_use(stage).await?;
        ensure!(
            in_use,
            "{} may be attached elsewhere while it is staged here",
            storage.volume
        );
        Ok((storage.volumes_asked(&drivers).len() >= 4).then_some(()))
    })
    .await?;
    ensure!(storage.mounted()? == [&*storage.staging], "{:?}", storage.mounted()?);
    scene.object("stateful").await?;

    drivers.csi().behave(Behavior::Well);
    scene.gone_and_clean(&pod).await?;
    let asked = storage.volumes_asked(&drivers);
    let (unpublish, unstage) = (storage.unpublish(), storage.unstage());
    let no_other = asked.iter().all(|call| [&unpublish, &unstage].contains(&call));
    ensure!(
        no_other && asked.first() == Some(&unpublish) && asked.last() == Some(&unstage),
        "{asked:?}"
    );
    ensure!(
        storage.claims_asked(&drivers).len() == 1,
        "{:?}",
        storage.claims_asked(&drivers)
    );
    ensure!(
        !storage.is_in_use(stage).await? && storage.mounted()?.is_empty(),
        "{storage:?}"
    );
    let staged = storage.staging.parent().is_some_and(|it| it.exists());
    ensure!(!staged, "{} is left", storage.staging.display());
    Ok(())
}

/// The commands are run as `why` shows them, except that the approval comes first.
pub async fn pod_of_an_uninstalled_driver_terminates_with_the_commands_that_why_shows(scene: &mut Scene) -> Result<()> {
    let drivers = Drivers::start(&scene.stage)?;
    let mut web = simple("uninstalled", 10, POLITE);
    demand(&mut web);
    let (pod, storage) = drivers.run(scene, web, None).await?;
    drivers.csi().crash().await;
    fs::remove_file(drivers.csi().registration())?;
    scene.start_agent().await?;
    scene.delete(&pod, None).await?;
    scene.event(&pod, "FailedUnMount").await?;
    let name = scene.name("uninstalled");
    let unmounts = format!(
        "umount {} && umount {}",
        storage.target.display(),
        storage.staging.display()
    );
    let commands = format!("{unmounts} && pod-teardown approve pod/{name}");
    scene.why("uninstalled", &[&commands]).await?;
    scene.ask(&["approve", &format!("pod/{name}"), "--yes"]).await?;
    ensure!(storage.mounted()?.len() == 2, "{:?}", storage.mounted()?);
    let unmounted = Command::new("sh").args(["-c", &unmounts]).status().await?;
    ensure!(unmounted.success(), "{unmounts}: {unmounted}");
    scene.gone_and_clean(&pod).await?;
    ensure!(
        !storage.is_in_use(&scene.stage).await? && storage.volumes_asked(&drivers).is_empty(),
        "{storage:?}"
    );
    scene.stop_agent().await
}
