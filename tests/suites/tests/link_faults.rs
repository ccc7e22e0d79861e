//! Raw Ethernet queues and the link agent where firmware or the device does not go along.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce::context::{Context, OpenConfig};
use ferroce::ethernet::{EthernetConfig, EthernetQueues, SendError};
use ferroce::function::InProcess;
use ferroce::link::{Agent, AgentConfig, DuplicateDetection, LinkError, ResolveError};
use ferroce::verbs::CreateError;
use ferroce_firmware_iface::opcode::Opcode;
use ferroce_firmware_iface::status::CommandStatus;
use ferroce_nic_model::fw::Fault;
use ferroce_nic_model::testbed::{Testbed, TestbedConfig};
use ferroce_suites::pair::{PATIENCE, mac};

fn open(testbed: &Testbed, index: usize) -> Arc<Context> {
    let device = testbed.device(index).expect("a NIC");
    let function = InProcess::new(&format!("nic{index}"), device).expect("an in-process function");
    Context::open(Arc::new(function), OpenConfig::new()).expect("the NIC comes up")
}

fn fail(testbed: &Testbed, opcode: Opcode, skip: u32) {
    let fault = Fault::Status(CommandStatus::NO_RESOURCES, 0x1234);
    let injected = testbed.with_nic(0, |nic| {
        nic.firmware().faults_mut().inject(Some(opcode), skip, fault)
    });
    injected.expect("a NIC");
}

/// What a NIC has, once all that was dropped is gone.
fn census(testbed: &Testbed, context: &Context) -> Vec<(&'static str, u32)> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        context.process_events();
        let counters = context.counters().reaper;
        if counters.waiting == 0 {
            assert_eq!(counters.failed, 0, "everything was destroyed in order");
            return testbed.stats(0).expect("a NIC").objects;
        }
        assert!(Instant::now() < deadline);
    }
}

/// Commands of the set-up, and how many of each pass before the one that fails.
const STEPS: [(Opcode, u32); 15] = [
    (Opcode::QUERY_HCA_CAP, 0),
    (Opcode::ALLOC_PD, 0),
    (Opcode::CREATE_MKEY, 0),
    (Opcode::CREATE_MKEY, 1),
    (Opcode::CREATE_CQ, 0),
    (Opcode::ALLOC_TRANSPORT_DOMAIN, 0),
    (Opcode::CREATE_TIS, 0),
    (Opcode::CREATE_SQ, 0),
    (Opcode::MODIFY_SQ, 0),
    (Opcode::CREATE_RQ, 0),
    (Opcode::MODIFY_RQ, 0),
    (Opcode::CREATE_TIR, 0),
    (Opcode::CREATE_FLOW_TABLE, 0),
    (Opcode::CREATE_FLOW_GROUP, 1),
    (Opcode::SET_FLOW_TABLE_ENTRY, 2),
];

#[test]
fn whichever_step_fails_leaves_nothing_behind() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    drop(EthernetQueues::open(&context, &EthernetConfig::default()).expect("queues"));
    let before = census(&testbed, &context);
    for (opcode, skip) in STEPS {
        fail(&testbed, opcode, skip);
        let refused = EthernetQueues::open(&context, &EthernetConfig::default());
        let error = refused.expect_err(&format!("{opcode:?} failed"));
        assert!(matches!(error, CreateError::Command(_)), "{opcode:?}: {error}");
        assert_eq!(census(&testbed, &context), before, "{opcode:?} after {skip}");
    }
    let works = EthernetQueues::open(&context, &EthernetConfig::default()).expect("queues");
    drop(works);
    assert_eq!(census(&testbed, &context), before);
    // Nothing was refused but what was to be.
    assert_eq!(
        testbed.stats(0).expect("a NIC").firmware_violations,
        STEPS.len() as u64
    );
    context.close().expect("an orderly end");
}

#[test]
fn a_device_without_raw_queues_is_named() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    fail(&testbed, Opcode::CREATE_SQ, 0);
    let error = Agent::start(&context, AgentConfig::new()).unwrap_err();
    assert!(matches!(error, LinkError::Queues(_)), "{error}");
    for (config, what) in [
        (
            EthernetConfig {
                receive_buffers: 0,
                ..Default::default()
            },
            "receive_buffers 0",
        ),
        (
            EthernetConfig {
                send_buffers: 1 << 20,
                ..Default::default()
            },
            "send_buffers 1048576",
        ),
        (
            EthernetConfig {
                vector: 99,
                ..Default::default()
            },
            "vector 99",
        ),
    ] {
        let error = EthernetQueues::open(&context, &config).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
}

#[test]
fn there_is_one_set_of_raw_queues() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    let agent = Agent::start(&context, AgentConfig::new()).expect("an agent");
    let refused = Agent::start(&context, AgentConfig::new()).unwrap_err();
    assert!(
        matches!(&refused, LinkError::Queues(CreateError::Taken { .. })),
        "{refused}"
    );
    // The first one's rules still stand.
    assert_eq!(testbed.stats(0).expect("a NIC").firmware_violations, 0);
    drop(agent);
    Agent::start(&context, AgentConfig::new()).expect("free again");
}

#[test]
fn frames_have_lengths_and_queues_an_end() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    let config = EthernetConfig {
        send_buffers: 3,
        receive_buffers: 5,
        ..Default::default()
    };
    let mut queues = EthernetQueues::open(&context, &config).expect("queues");
    let longest = queues.max_frame();
    for len in [0, 13, longest + 1] {
        let error = queues.send(&vec![0; len]).unwrap_err();
        assert_eq!(error, SendError::Length { len, max: longest });
    }
    // Not polled, three are all that there may be; polled, there is no end.
    let mut frame = vec![0xff; longest];
    frame[6..12].copy_from_slice(&mac(0).0);
    let sent = (0..10).take_while(|_| queues.send(&frame).is_ok()).count();
    assert_eq!(sent, 3);
    let deadline = Instant::now() + PATIENCE;
    let mut more = 0;
    while more < 200 {
        queues.poll(|_| ());
        match queues.send(&frame[..60 + more]) {
            Ok(()) => more += 1,
            Err(SendError::Full { max: 3 }) => assert!(Instant::now() < deadline),
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(queues.counters().sent, 203);
    assert_eq!(testbed.stats(0).expect("a NIC").data_path_violations, 0);
}

#[test]
fn more_frames_than_there_are_buffers_for_are_dropped_and_the_rest_arrives() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let (a, b) = (open(&testbed, 0), open(&testbed, 1));
    let config = EthernetConfig {
        receive_buffers: 4,
        ..Default::default()
    };
    let mut receiver = EthernetQueues::open(&a, &config).expect("queues");
    let mut sender = EthernetQueues::open(&b, &EthernetConfig::default()).expect("queues");
    // ARP to all, with a number in it.
    let mut frame = vec![0; 60];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&mac(1).0);
    frame[12..14].copy_from_slice(&[8, 6]);
    let deadline = Instant::now() + PATIENCE;
    for round in 0..20u8 {
        for i in 0..8u8 {
            frame[20..22].copy_from_slice(&[round, i]);
            while sender.send(&frame).is_err() {
                sender.poll(|_| ());
            }
        }
        let arrived = || testbed.stats(0).expect("a NIC").port.received;
        while arrived() < (u64::from(round) + 1) * 8 {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
        let mut seen = Vec::new();
        while seen.len() < 4 {
            assert!(Instant::now() < deadline, "{seen:?}");
            receiver.poll(|frame| seen.push([frame[20], frame[21]]));
        }
        assert_eq!(seen, [0, 1, 2, 3].map(|i| [round, i]), "the first four, in order");
        assert_eq!(receiver.poll(|_| ()), 0);
    }
    assert_eq!(receiver.counters().errors, 0);
}

#[test]
fn an_agent_whose_device_dies_says_so() {
    let testbed = Testbed::new(TestbedConfig::default()).expect("a testbed");
    let context = open(&testbed, 0);
    let config = AgentConfig::new()
        .duplicate_detection(DuplicateDetection::Off)
        .address("10.9.0.1/24".parse().expect("an address"));
    let agent = Agent::start(&context, config).expect("an agent");
    testbed.with_nic(0, |nic| {
        nic.firmware()
            .set_health(ferroce_firmware_iface::status::HealthSyndrome(1), true)
    });
    let deadline = Instant::now() + PATIENCE;
    loop {
        let _ = context.health();
        let ip: IpAddr = [10, 9, 0, 2].into();
        let soon = Instant::now() + Duration::from_millis(20);
        match agent.resolve(ip, None, soon).unwrap_err() {
            ResolveError::Ended { reason } => {
                assert!(!reason.is_empty());
                break;
            }
            _ => assert!(Instant::now() < deadline, "the agent noticed"),
        }
    }
}
