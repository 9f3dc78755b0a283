//! Custom kinds, whose definitions and versions come and go.

use anyhow::{Context, Result, ensure};
use http::{Method, header};
use serde_json::{Value, json};
use testbed::{
    proto::{self, PartialObjectMetadata, PartialObjectMetadataList},
    rest::{Client, Patch},
    things::{DEFINITIONS, definition},
};

use crate::scene::{
    LIMIT, ObjectSpec, Scene, delete, eventually, in_namespace, owned, owners_of, to, wait_for_deletion,
};

const MAPS: &str = "configmaps/v1";
const LIST: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const EVENTS: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

/// A custom kind `Thing` in its own group. The first version is the stored one.
pub struct Things {
    pub group: String,
    namespaced: bool,
    versions: &'static [&'static str],
}

impl Things {
    /// Defines them; returns once they are served.
    pub async fn define(
        admin: &Client,
        group: &str,
        namespaced: bool,
        versions: &'static [&'static str],
    ) -> Result<Self> {
        let things = Self {
            group: group.to_owned(),
            namespaced,
            versions,
        };
        things.define_again(admin).await?;
        Ok(things)
    }

    async fn define_again(&self, admin: &Client) -> Result<()> {
        let definition = definition(&self.group, self.namespaced, self.versions);
        admin.create(DEFINITIONS, &definition).await?.ok()?;
        for version in self.versions {
            self.answers(admin, version, 200).await?;
        }
        Ok(())
    }

    /// Waits until a version has this status code: kube-apiserver follows a definition with a delay.
    async fn answers(&self, admin: &Client, version: &str, code: u16) -> Result<()> {
        let path = format!("/apis/{}/{version}/things", self.group);
        eventually(LIMIT, &format!("{path} to be answered with {code}"), async || {
            Ok((admin.get(&path).await?.code() == code).then_some(()))
        })
        .await
    }

    fn definition(&self) -> String {
        format!("{DEFINITIONS}/things.{}", self.group)
    }

    /// URL path of all of them in a namespace; without one if they are cluster-scoped.
    fn collection(&self, namespace: &str) -> String {
        let resource = format!("things.{}/{}", self.group, self.versions[0]);
        in_namespace(&resource, if self.namespaced { namespace } else { "" })
    }

    async fn create(&self, s: &Scene, name: &str, spec: &ObjectSpec) -> Result<Value> {
        let mut thing = crate::scene::plain(name, spec);
        thing["apiVersion"] = format!("{}/{}", self.group, self.versions[0]).into();
        thing["kind"] = "Thing".into();
        Ok(s.admin().create(&self.collection(&s.namespace), &thing).await?.ok()?)
    }

    async fn delete(&self, s: &Scene, name: &str, policy: &str) -> Result<()> {
        delete(s.admin(), &format!("{}/{name}", self.collection(&s.namespace)), policy).await
    }
}

/// kube-controller-manager deletes the dependent here: it asks for the owner in the referenced version and takes a
/// missing route for an absent object.
pub async fn a_dependent_that_names_an_unserved_version_stays_while_its_owner_exists(s: &Scene) -> Result<()> {
    let group = format!("{}.test", s.namespace);
    let things = Things::define(s.admin(), &group, true, &["v1", "v1beta1"]).await?;
    s.cluster.agent.until_watched(&format!("things.{group}")).await?;
    let owner = things.create(s, "owner", &ObjectSpec::default()).await?;
    let mut old = to(&owner, true);
    old["apiVersion"] = format!("{group}/v1beta1").into();
    s.map("before", &owned([old.clone()])).await?;
    let stop = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    s.admin().patch(&things.definition(), Patch::Json, &stop).await?.ok()?;
    things.answers(s.admin(), "v1beta1", 404).await?;
    s.map("after", &owned([old])).await?;
    for name in ["before", "after"] {
        let child = s.expect_unchanged(MAPS, name).await?;
        ensure!(owners_of(&child) == ["owner"], "{child}");
    }
    // They are deleted with the owner, whatever version they name.
    things.delete(s, "owner", "Foreground").await?;
    s.wait_for_deletion(MAPS, "before").await?;
    s.wait_for_deletion(MAPS, "after").await?;
    wait_for_deletion(s.admin(), &format!("{}/owner", things.collection(&s.namespace))).await
}

/// TestCRDDeletionCascading, twice with the same definition.
pub async fn deleting_a_definition_deletes_its_instances_and_their_dependents_each_time(s: &Scene) -> Result<()> {
    let group = format!("{}.test", s.namespace);
    let things = Things::define(s.admin(), &group, true, &["v1"]).await?;
    for time in 0..2 {
        if time > 0 {
            things.define_again(s.admin()).await?;
        }
        let owner = things.create(s, "owner", &ObjectSpec::default()).await?;
        s.map("child", &owned([to(&owner, true)])).await?;
        eventually(LIMIT, "the instance to be seen", async || {
            s.cluster.agent.until_watched(&format!("things.{group}")).await?;
            let status = s.cluster.agent.status().await?;
            let kinds = status["work"]["kinds"].as_array();
            let start = format!("things.{group}/");
            let mut kinds = kinds.into_iter().flatten();
            let seen = kinds.any(|kind| {
                kind["resource"].as_str().is_some_and(|name| name.starts_with(&start)) && kind["objects"] == 1
            });
            Ok(seen.then_some(()))
        })
        .await?;
        s.expect_unchanged(MAPS, "child").await?;
        delete(s.admin(), &things.definition(), "Background").await?;
        s.wait_for_deletion(MAPS, "child").await?;
        wait_for_deletion(s.admin(), &things.definition()).await?;
    }
    Ok(())
}

/// Custom kinds support the collector's `Accept` header as built-in ones do.
pub async fn metadata_of_custom_objects_is_sent_as_protobuf(s: &Scene) -> Result<()> {
    let group = format!("{}.test", s.namespace);
    let things = Things::define(s.admin(), &group, true, &["v1"]).await?;
    let thing = things.create(s, "one", &ObjectSpec::default()).await?;
    let uid = thing["metadata"]["uid"].as_str().context("no UID")?;
    let all = things.collection(&s.namespace);

    let list = s
        .admin()
        .call(Method::GET, &all)
        .header(header::ACCEPT, LIST)
        .send()
        .await?;
    ensure!(list.code() == 200, "{}", list.body);
    let type_ = list.header("content-type");
    ensure!(type_.starts_with("application/vnd.kubernetes.protobuf"), "{type_}");
    let read: PartialObjectMetadataList = proto::decode(&list.bytes)?;
    let version = read
        .metadata
        .context("a list without metadata")?
        .resource_version()
        .to_owned();
    let names: Vec<_> = read.items.iter().filter_map(|item| item.metadata.as_ref()).collect();
    ensure!(names.len() == 1 && names[0].uid() == uid, "{names:?}");

    let options = [("watch", "true"), ("resourceVersion", version.as_str())];
    let watch = s.admin().call(Method::GET, &all).options(&options);
    let mut watch = watch.header(header::ACCEPT, EVENTS).stream().await?;
    let type_ = watch.content_type().to_owned();
    ensure!(type_.starts_with("application/vnd.kubernetes.protobuf"), "{type_}");
    things.delete(s, "one", "Background").await?;
    let (kind, message) = watch.next_message().await?.context("the watch has ended")?;
    let object: PartialObjectMetadata = proto::decode(&message)?;
    let metadata = object.metadata.context("an object without metadata")?;
    ensure!(
        (kind.as_str(), metadata.uid()) == ("DELETED", uid),
        "{kind} {metadata:?}"
    );
    Ok(())
}
