use super::*;

#[test]
fn the_sequence_of_linux_works_without_a_violation() {
    let mut bench = Bench::new(Profile::connectx4());
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    let issi = bench.plain(Opcode::QUERY_ISSI, 0).ok();
    assert_eq!(issi[0x6f], 2);
    bench
        .command(Opcode::SET_ISSI, |i: &mut SetIssiIn| i.set_current_issi(1))
        .ok();
    assert_eq!(bench.give_asked(1, 0x1_0000_0000), 6);
    bench.write_endianness();
    let input: QueryHcaCapIn = input_of(Opcode::QUERY_HCA_CAP, 1, |_| {});
    let current = bench.exec(input.as_bytes(), 4112).ok();
    let mut set = input_of(Opcode::SET_HCA_CAP, 0, |_: &mut QueryIssiIn| {})
        .as_bytes()
        .to_vec();
    set.extend_from_slice(&current[16..]);
    set[16 + 0x13] = 0x11; // log_max_qp
    bench.exec(&set, 16).ok();
    let current = bench.exec(input.as_bytes(), 4112).ok();
    assert_eq!(current[16..], set[16..]);
    assert_eq!(bench.fw.general().log_max_qp(), 0x11);
    assert_eq!(bench.give_asked(2, 0x2_0000_0000), 12_868);
    bench.command(Opcode::INIT_HCA, |_: &mut InitHcaIn| {}).ok();
    assert_eq!(bench.fw.state(), HcaState::Initialized);
    assert_eq!(bench.fw.pages_held(), 12_874);
    assert_eq!(bench.plane.mac, bench.fw.mac());

    bench
        .command(Opcode::TEARDOWN_HCA, |_: &mut TeardownHcaIn| {})
        .ok();
    let mut back = 0;
    loop {
        let taken = bench.take(768).len();
        back += taken;
        if taken == 0 {
            break;
        }
    }
    assert_eq!(back, 12_874);
    bench.plain(Opcode::DISABLE_HCA, 0).ok();
    assert_eq!(bench.complaints(), Vec::<String>::new());
}

#[test]
fn steps_out_of_order_are_refused() {
    let mut bench = Bench::new(Profile::connectx4());
    let state = CommandStatus::BAD_SYS_STATE;
    assert_eq!(
        bench.plain(Opcode::QUERY_ISSI, 0).refused(),
        (state, syndrome::NOT_ENABLED)
    );
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    assert_eq!(
        bench.plain(Opcode::ENABLE_HCA, 0).refused(),
        (state, syndrome::ALREADY)
    );
    assert_eq!(
        bench.plain(Opcode::ALLOC_PD, 0).refused(),
        (state, syndrome::NOT_INITIALIZED)
    );
    let early = bench.command(Opcode::INIT_HCA, |_: &mut InitHcaIn| {});
    assert_eq!(early.refused(), (state, syndrome::PAGES_MISSING));
    let zero_issi = bench.command(Opcode::SET_ISSI, |i: &mut SetIssiIn| i.set_current_issi(0));
    assert_eq!(zero_issi.refused().0, CommandStatus::BAD_PARAM);
    assert_eq!(bench.fw.violations().total(), 5);
}

#[test]
fn capabilities_beyond_the_maximum_or_not_settable_are_refused() {
    let mut bench = Bench::new(Profile::connectx4());
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    bench.give_asked(1, 0x1_0000_0000);
    let input: QueryHcaCapIn = input_of(Opcode::QUERY_HCA_CAP, 1, |_| {});
    let current = bench.exec(input.as_bytes(), 4112).ok();
    let with = |edit: &dyn Fn(&mut [u8])| {
        let mut set = input_of(Opcode::SET_HCA_CAP, 0, |_: &mut QueryIssiIn| {})
            .as_bytes()
            .to_vec();
        set.extend_from_slice(&current[16..]);
        edit(&mut set[16..]);
        set
    };
    let bad = CommandStatus::BAD_PARAM;
    let too_many = bench.exec(&with(&|c| c[0x13] = 24), 16);
    assert_eq!(too_many.refused(), (bad, syndrome::CAP_ABOVE_MAX));
    let no_xrc = bench.exec(&with(&|c| c[0x47] &= !8), 16);
    assert_eq!(no_xrc.refused(), (bad, syndrome::CAP_NOT_SETTABLE));
    let reserved = bench.exec(&with(&|c| c[0x800] = 1), 16);
    assert_eq!(reserved.refused(), (bad, syndrome::RESERVED_SET));
    bench.exec(&with(&|_| ()), 16).ok();
    let unknown: QueryHcaCapIn = input_of(Opcode::QUERY_HCA_CAP, 0x5e << 1, |_| {});
    assert_eq!(bench.exec(unknown.as_bytes(), 4112).refused().0, bad);
}

#[test]
fn every_profile_comes_up_and_goes_down() {
    for profile in Profile::all() {
        let mut bench = Bench::initialized(profile);
        bench
            .command(Opcode::TEARDOWN_HCA, |_: &mut TeardownHcaIn| {})
            .ok();
        while !bench.take(700).is_empty() {}
        bench.plain(Opcode::DISABLE_HCA, 0).ok();
        assert_eq!(bench.fw.pages_held(), 0);
        assert_eq!(bench.complaints(), Vec::<String>::new());
    }
}

#[test]
fn what_a_teardown_leaves_behind_is_seen() {
    let mut bench = Bench::initialized(Profile::minimal());
    bench.plain(Opcode::ALLOC_PD, 0).ok();
    bench
        .command(Opcode::TEARDOWN_HCA, |_: &mut TeardownHcaIn| {})
        .ok();
    assert!(bench.complaints()[0].contains("PD"), "{:?}", bench.complaints());
    // The HCA can be initialized again.
    bench.command(Opcode::INIT_HCA, |_: &mut InitHcaIn| {}).ok();
}

#[test]
fn a_reset_forgets_the_queue_and_the_pages() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.fw.reset(bench.now_ns);
    assert_eq!((bench.fw.pages_held(), bench.fw.state()), (0, HcaState::Disabled));
    bench.write32(0x18, 1);
    bench.run();
    assert!(bench.complaints().last().unwrap().contains("initializes"));
    bench.now_ns += 1_000_000_000;
    bench.write32(0x18, 1);
    assert!(bench.complaints().last().unwrap().contains("address"));
}

#[test]
fn the_port_answers_what_linux_asks() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let register = |id: u16, data: &[u8]| {
        let mut input = input_of(Opcode::ACCESS_REG, 1, |i: &mut AccessRegisterIn| {
            i.set_register_id(id)
        })
        .as_bytes()
        .to_vec();
        input.extend_from_slice(data);
        input
    };
    let mut pmtu = [0; 16];
    pmtu[1] = 1;
    let out = bench.exec(&register(0x5003, &pmtu), 32).ok();
    assert_eq!(u16::from_be_bytes([out[20], out[21]]), 10_240);
    let mut ptys = [0; 64];
    (ptys[1], ptys[3]) = (1, 4);
    let out = bench.exec(&register(0x5004, &ptys), 80).ok();
    assert_eq!(out[16 + 0x24..][..4], (1u32 << 20).to_be_bytes());
    let out = bench.exec(&register(0x6001, &[0; 64]), 80).ok();
    assert!(out[16..].starts_with(b"ferroce"));
    let missing = bench.exec(&register(0x9028, &[0; 16]), 32);
    assert_eq!(missing.refused().1, syndrome::BAD_REGISTER);
    assert!(bench.fw.violations().iter().all(Violation::is_probe));

    let pkey: QueryHcaVportPkeyIn = input_of(Opcode::QUERY_HCA_VPORT_PKEY, 0, |_| {});
    assert_eq!(bench.exec(pkey.as_bytes(), 20).ok()[16..], [0, 0, 0xff, 0xff]);
    let state = bench.plain(Opcode::QUERY_VPORT_STATE, 0).ok();
    assert_eq!(state[15], 0x11);
    let context: QueryNicVportContextIn = input_of(Opcode::QUERY_NIC_VPORT_CONTEXT, 0, |_| {});
    let out = bench.exec(context.as_bytes(), 0x110).ok();
    assert_eq!(out[0x10 + 0xf6..][..6], Profile::connectx4().mac);
    let address: SetL2TableEntryIn = input_of(Opcode::SET_L2_TABLE_ENTRY, 0, |i: &mut SetL2TableEntryIn| {
        i.mac_address_mut().set_mac_addr_31_0(0x1234_5678);
    });
    bench.exec(address.as_bytes(), 16).ok();
    assert_eq!(bench.plane.l2, [(0, Some([0, 0, 0x12, 0x34, 0x56, 0x78]))]);
}

#[test]
fn a_change_of_the_link_is_an_event() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.create_eq(&[9]);
    bench.run();
    bench.plane.link = false;
    bench.run();
    bench.run();
    bench.plane.link = true;
    bench.run();
    let up = |up| Event::PortChange {
        port: 1,
        change: if up { PortChange::ACTIVE } else { PortChange::DOWN },
    };
    assert_eq!(bench.plane.events, [up(false), up(true)]);
}
