//! TestCascadingDeleteOnCRDConversionFailure: a kind that cannot be listed, because its conversion webhook is missing.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    control_plane::ControlPlane,
    rest::{Client, Patch},
    things::{DEFINITIONS, definition},
};

use crate::{
    agent::{Agent, account},
    scene::{LIMIT, ObjectSpec, delete, eventually, found, in_namespace, owned, plain, to, wait_for_deletion},
};

const GROUP: &str = "unlisted.test";
const MAPS: &str = "configmaps/v1";

/// Stored as v1, preferred as v2, and without a conversion.
async fn define(admin: &Client) -> Result<()> {
    let webhook = json!({"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]});
    let mut definition = definition(GROUP, true, &["v1", "v2"]);
    definition["spec"]["conversion"] = json!({"strategy": "Webhook", "webhook": webhook});
    admin.create(DEFINITIONS, &definition).await?.ok()?;
    let things = in_namespace(&format!("things.{GROUP}/v1"), "default");
    let thing = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "Thing", "metadata": {"name": "one"}});
    eventually(LIMIT, "the first thing", async || {
        let created = admin.create(&things, &thing).await?;
        Ok((created.code() == 201).then_some(()))
    })
    .await?;
    let unlisted = in_namespace(&format!("things.{GROUP}/v2"), "default");
    eventually(LIMIT, "things not to be listed", async || {
        Ok((admin.get(&unlisted).await?.code() == 500).then_some(()))
    })
    .await
}

pub async fn a_kind_that_cannot_be_listed_delays_only_finalizers_and_is_named() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    define(&admin).await?;
    let agent = Agent::start(&account(&plane).await?, "always")?;
    let maps = in_namespace(MAPS, "default");
    let path = |name: &str| format!("{maps}/{name}");
    let create = async |name: &str, spec: ObjectSpec| -> Result<Value> {
        Ok(admin.create(&maps, &plain(name, &spec)).await?.ok()?)
    };
    let with_finalizer = async {
        let unsynced = agent.until(LIMIT, "the kind to be named", |status| {
            let kinds = status["work"]["kinds"].as_array();
            let mut kinds = kinds.into_iter().flatten();
            let is_named =
                kinds.any(|kind| kind["resource"] == format!("things.{GROUP}/v2") && kind["error"].is_string());
            is_named && status["work"]["unsynced"].is_string()
        });
        ensure!(unsynced.await?["synced"] == false);

        let owner = create("background", ObjectSpec::default()).await?;
        create("of-background", owned([to(&owner, true)])).await?;
        delete(&admin, &path("background"), "Background").await?;
        wait_for_deletion(&admin, &path("of-background")).await?;

        let owner = create("foreground", ObjectSpec::default()).await?;
        create("of-foreground", owned([to(&owner, true)])).await?;
        delete(&admin, &path("foreground"), "Foreground").await?;
        wait_for_deletion(&admin, &path("of-foreground")).await?;
        agent
            .until(LIMIT, "the foreground deletion to wait", |status| {
                status["work"]["deletions"][0]["why"] == "foregroundDeletion, 0 known dependents"
            })
            .await?;
        ensure!(
            found(&admin, &path("foreground")).await?.is_some(),
            "there might be things that block it"
        );

        // No conversion is needed any more, and the finalizers are removed.
        let none = json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}});
        let definition = format!("{DEFINITIONS}/things.{GROUP}");
        admin.patch(&definition, Patch::Merge, &none).await?.ok()?;
        wait_for_deletion(&admin, &path("foreground")).await?;
        agent
            .until(LIMIT, "everything to be seen", |status| status["synced"] == true)
            .await
    };
    agent.during(with_finalizer).await?;
    agent.stop().await
}
