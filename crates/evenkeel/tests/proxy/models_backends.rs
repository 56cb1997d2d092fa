//! Requests to language models with two backends: a prompt goes to the one that has its beginning
//! in its cache, until that one is too far ahead.

use crate::backends::server;
use crate::models::{CHAT, call, models, received};
use crate::stage::{Stage, Wire};
use evenkeel_config::settings::ConcurrencySetting;
use evenkeel_telemetry::counts::affinity::AffinityResult;

/// Two backends: the one that the test plays, and one that answers `quick` at once.
fn two_backends(prefix_lead: usize) -> Stage {
    let quick = server("quick");
    models(|settings| {
        settings.backends.push(quick);
        settings.queue.concurrency = ConcurrencySetting::Fixed(32);
        settings.tokens.prefix_lead = prefix_lead;
    })
}

/// A prompt with the system prompt of `tenant`, which is longer than 2 KiB.
fn prompt(tenant: usize, question: usize) -> String {
    let system = format!("You work for tenant {tenant}. ").repeat(150);
    format!(
        r#"{{"model":"m","messages":[{{"role":"system","content":"{system}"}},
        {{"role":"user","content":"question {question}"}}]}}"#
    )
}

/// Sends requests until a prompt of a new tenant gets to the backend that the test plays. Returns
/// the tenant, the client, and the backend with the unanswered request.
fn held(stage: &Stage) -> (usize, Wire, Wire) {
    for tenant in 0..64 {
        let mut client = stage.client();
        call(&mut client, CHAT, &prompt(tenant, 0));
        if let Some(mut backend) = stage.backend_or_client(&mut client) {
            received(&mut backend);
            return (tenant, client, backend);
        }
        assert_eq!(client.message().text(), "quick");
    }
    panic!("all new prompts go to one backend");
}

fn results(stage: &Stage) -> [u64; 3] {
    let results = [AffinityResult::Hit, AffinityResult::OverBound, AffinityResult::Unknown];
    results.map(|result| stage.watch.proxy.affinity.results(result).get())
}

#[test]
fn a_prompt_goes_to_the_backend_that_has_its_beginning() {
    let stage = two_backends(8);
    let (tenant, client, backend) = held(&stage);
    let before = results(&stage);
    // This backend has one request more than the other, and gets more for its prompts.
    let mut all = vec![(client, backend)];
    for question in 1..4 {
        let mut client = stage.client();
        call(&mut client, CHAT, &prompt(tenant, question));
        let mut backend = stage.backend_or_client(&mut client).expect("it has the beginning");
        let (_, body) = received(&mut backend);
        assert!(body.contains(&format!("question {question}")), "{body}");
        all.push((client, backend));
    }
    assert_eq!(results(&stage), [before[0] + 3, before[1], before[2]]);
    // Another prompt goes to the backend with less load, and so do all with the same beginning.
    let mut client = stage.client();
    for question in 1..4 {
        call(&mut client, CHAT, &prompt(1_000, question));
        assert_eq!(client.message().text(), "quick");
    }
    for (client, backend) in &mut all {
        backend.answer("played");
        assert_eq!(client.message().text(), "played");
    }
}

#[test]
fn a_backend_that_is_too_far_ahead_is_passed_over() {
    let stage = two_backends(1);
    let (tenant, _client, _backend) = held(&stage);
    let before = results(&stage);
    let mut client = stage.client();
    call(&mut client, CHAT, &prompt(tenant, 1));
    assert_eq!(client.message().text(), "quick");
    assert_eq!(results(&stage), [before[0], before[1] + 1, before[2]]);
    // Now that one has the beginning too, and less load.
    call(&mut client, CHAT, &prompt(tenant, 2));
    assert_eq!(client.message().text(), "quick");
    assert_eq!(results(&stage)[0], before[0] + 1);
}

#[test]
fn without_a_lead_the_load_alone_decides() {
    let stage = two_backends(0);
    let (tenant, _client, _backend) = held(&stage);
    let mut client = stage.client();
    for question in 1..4 {
        call(&mut client, CHAT, &prompt(tenant, question));
        assert_eq!(client.message().text(), "quick");
    }
    assert_eq!(results(&stage), [0; 3]);
}
