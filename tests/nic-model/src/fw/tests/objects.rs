use super::*;

fn number(output: &[u8]) -> u32 {
    u32::from_be_bytes(*output[8..].first_chunk().unwrap()) & 0xff_ffff
}

/// A bench with a PD, a GID at index 0 and an RC queue pair in Reset; their numbers.
fn with_qp() -> (Bench, u32, u32) {
    let mut bench = Bench::initialized(Profile::connectx4());
    let pd = number(&bench.plain(Opcode::ALLOC_PD, 0).ok());
    bench
        .command(Opcode::SET_ROCE_ADDRESS, |i: &mut SetRoceAddressIn| {
            let address = i.roce_address_mut();
            for (at, byte) in [(10, 0xff), (11, 0xff), (12, 10), (15, 1)] {
                address.set_source_l3_address(at, byte);
            }
            address.set_source_mac_31_0(0x0102_0304);
            address.set_roce_version(2);
        })
        .ok();
    let mut create = input_of(Opcode::CREATE_QP, 0, |i: &mut CreateQpIn| {
        let qpc = i.qpc_mut();
        qpc.set_pd(pd).unwrap();
        qpc.set_pm_state(3).unwrap();
        qpc.set_log_sq_size(4).unwrap();
        qpc.set_log_rq_size(4).unwrap();
        qpc.set_dbr_addr(0x3000);
    })
    .as_bytes()
    .to_vec();
    create.extend_from_slice(&0x4000u64.to_be_bytes());
    let qpn = number(&bench.exec(&create, 16).ok());
    (bench, pd, qpn)
}

fn transition(bench: &mut Bench, opcode: Opcode, qpn: u32, mask: u32, fill: impl FnOnce(&mut Qpc)) -> Reply {
    bench.command(opcode, |i: &mut Init2rtrQpIn| {
        i.set_qpn(qpn).unwrap();
        i.set_opt_param_mask(mask);
        fill(i.qpc_mut());
    })
}

fn rtr(qpc: &mut Qpc) {
    qpc.set_mtu(3).unwrap();
    qpc.set_log_msg_max(30).unwrap();
    qpc.set_remote_qpn(0x77).unwrap();
    qpc.set_next_rcv_psn(0x123).unwrap();
    qpc.set_log_rra_max(4).unwrap();
    let path = qpc.primary_address_path_mut();
    path.set_rmac_31_0(0x0506_0708);
    path.set_rgid_rip(15, 2);
    path.set_udp_sport(0xc000);
}

#[test]
fn a_queue_pair_walks_to_rts_and_back() {
    let (mut bench, pd, qpn) = with_qp();
    transition(&mut bench, Opcode::RST2INIT_QP, qpn, 0, |q| {
        q.set_pd(pd).unwrap();
        q.set_pm_state(3).unwrap();
        q.set_rwe(true);
        q.set_primary_address_path_port();
    })
    .ok();
    transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 0, rtr).ok();
    transition(&mut bench, Opcode::RTR2RTS_QP, qpn, 0, |q| {
        q.set_next_send_psn(0x456).unwrap();
        q.set_retry_count(7).unwrap();
    })
    .ok();
    let qpc = *bench.plane.qps.get(qpn).unwrap();
    assert_eq!((qpc.state(), qpc.remote_qpn(), qpc.retry_count()), (3, 0x77, 7));
    assert!(qpc.rwe(), "the permission of RST2INIT sticks");
    let busy = bench.command(Opcode::DEALLOC_PD, |i: &mut DeallocPdIn| i.set_pd(pd).unwrap());
    assert_eq!(busy.refused().0, CommandStatus::RESOURCE_BUSY);
    bench
        .command(Opcode::QP_2RST, |i: &mut Qp2rstIn| i.set_qpn(qpn).unwrap())
        .ok();
    let out = bench
        .command(Opcode::QUERY_QP, |i: &mut QueryQpIn| i.set_qpn(qpn).unwrap())
        .ok();
    assert_eq!(out[0x18] >> 4, 0);
    bench
        .command(Opcode::DESTROY_QP, |i: &mut DestroyQpIn| i.set_qpn(qpn).unwrap())
        .ok();
    bench
        .command(Opcode::DEALLOC_PD, |i: &mut DeallocPdIn| i.set_pd(pd).unwrap())
        .ok();
    assert_eq!(bench.fw.violations().total(), 1);
}

trait Port {
    fn set_primary_address_path_port(&mut self);
}

impl Port for Qpc {
    fn set_primary_address_path_port(&mut self) {
        self.primary_address_path_mut().set_vhca_port_num(1);
    }
}

#[test]
fn transitions_from_the_wrong_state_are_refused() {
    let (mut bench, _, qpn) = with_qp();
    let early = transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 0, rtr);
    assert_eq!(early.refused(), (CommandStatus::BAD_QP_STATE, syndrome::QP_STATE));
    let none = transition(&mut bench, Opcode::RST2INIT_QP, 0xabcd, 0, |_| {});
    assert_eq!(none.refused().0, CommandStatus::BAD_RESOURCE);
}

#[test]
fn a_bad_path_is_refused_by_name() {
    let (mut bench, pd, qpn) = with_qp();
    transition(&mut bench, Opcode::RST2INIT_QP, qpn, 0, |q| q.set_pd(pd).unwrap()).ok();
    let mut refused = |edit: &dyn Fn(&mut Qpc)| {
        transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 0, |q| {
            rtr(q);
            edit(q);
        })
        .refused()
    };
    let bad = (CommandStatus::BAD_PARAM, syndrome::BAD_FIELD);
    assert_eq!(refused(&|q| q.set_mtu(0).unwrap()), bad);
    assert_eq!(refused(&|q| q.set_mtu(6).unwrap()), bad);
    assert_eq!(refused(&|q| q.primary_address_path_mut().set_rmac_31_0(0)), bad);
    assert_eq!(
        refused(&|q| q.primary_address_path_mut().set_rmac_47_32(0x100)),
        bad
    );
    assert_eq!(
        refused(&|q| q.primary_address_path_mut().set_rgid_rip(15, 0)),
        bad
    );
    assert_eq!(
        refused(&|q| q.primary_address_path_mut().set_udp_sport(0x1000)),
        bad
    );
    assert_eq!(refused(&|q| q.primary_address_path_mut().set_rlid(1)), bad);
    assert_eq!(
        refused(&|q| q.primary_address_path_mut().set_src_addr_index(9)),
        (CommandStatus::BAD_PARAM, syndrome::BAD_GID_INDEX)
    );
    assert_eq!(
        refused(&|q| q.set_log_rra_max(5).unwrap()).0,
        CommandStatus::EXCEED_LIM
    );
    assert_eq!(
        bench.plane.qps.get(qpn).unwrap().state(),
        1,
        "nothing was changed"
    );
    let mask = transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 1 << 14, rtr);
    assert_eq!(mask.refused(), (CommandStatus::BAD_PARAM, syndrome::OPT_MASK));
    transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 0, rtr).ok();
}

#[test]
fn the_umr_queue_pair_needs_no_path() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let pd = number(&bench.plain(Opcode::ALLOC_PD, 0).ok());
    let create = input_of(Opcode::CREATE_QP, 0, |i: &mut CreateQpIn| {
        i.qpc_mut().set_st(0xc);
        i.qpc_mut().set_pd(pd).unwrap();
    });
    let qpn = number(&bench.exec(create.as_bytes(), 16).ok());
    transition(&mut bench, Opcode::RST2INIT_QP, qpn, 0, |q| q.set_pd(pd).unwrap()).ok();
    transition(&mut bench, Opcode::INIT2RTR_QP, qpn, 0, |q| {
        q.set_mtu(5).unwrap();
        q.set_log_msg_max(12).unwrap();
    })
    .ok();
    transition(&mut bench, Opcode::RTR2RTS_QP, qpn, 0, |_| {}).ok();
}

#[test]
fn queues_above_the_capabilities_are_refused() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let mut eq = |edit: &dyn Fn(&mut CreateEqIn)| {
        let input = input_of(Opcode::CREATE_EQ, 0, |i: &mut CreateEqIn| edit(i));
        bench.exec(input.as_bytes(), 16).refused()
    };
    let size = eq(&|i| i.eq_context_entry_mut().set_log_eq_size(23).unwrap());
    assert_eq!(size, (CommandStatus::EXCEED_LIM, syndrome::ABOVE_LIMIT));
    let vector = eq(&|i| i.eq_context_entry_mut().set_intr(64).unwrap());
    assert_eq!(vector, (CommandStatus::BAD_PARAM, syndrome::BAD_VECTOR));
    let eqn = bench.create_eq(&[9]);
    let again = input_of(Opcode::CREATE_EQ, 0, |i: &mut CreateEqIn| {
        i.set_event_bitmask(0, 1 << 9)
    });
    assert_eq!(
        bench.exec(again.as_bytes(), 16).refused().1,
        syndrome::EVENT_TAKEN
    );
    let cq = bench.command(Opcode::CREATE_CQ, |i: &mut CreateCqIn| {
        i.cq_context_mut().set_log_cq_size(23).unwrap();
        i.cq_context_mut().set_c_eqn_or_apu_element(eqn.into());
    });
    assert_eq!(cq.refused(), (CommandStatus::EXCEED_LIM, syndrome::ABOVE_LIMIT));
    let qp = bench.command(Opcode::CREATE_QP, |i: &mut CreateQpIn| i.qpc_mut().set_st(5));
    assert_eq!(qp.refused().0, CommandStatus::BAD_PARAM);
}

#[test]
fn mkeys_need_what_ibta_asks_of_access_rights() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let pd = number(&bench.plain(Opcode::ALLOC_PD, 0).ok());
    let mut create = |edit: &dyn Fn(&mut CreateMkeyIn)| {
        bench.command(Opcode::CREATE_MKEY, |i: &mut CreateMkeyIn| {
            i.memory_key_mkey_entry_mut().set_pd(pd).unwrap();
            i.memory_key_mkey_entry_mut().set_length64(true);
            edit(i);
        })
    };
    create(&|i| i.memory_key_mkey_entry_mut().set_lw(true)).ok();
    let remote = create(&|i| i.memory_key_mkey_entry_mut().set_rw(true));
    assert_eq!(remote.refused().0, CommandStatus::BAD_PARAM);
    let list = create(&|i| i.set_translations_octword_actual_size(u32::MAX));
    assert_eq!(list.refused().0, CommandStatus::BAD_INP_LEN);
}

#[test]
fn gids_are_checked() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let mut set = |edit: &dyn Fn(&mut SetRoceAddressIn)| {
        bench.command(Opcode::SET_ROCE_ADDRESS, |i: &mut SetRoceAddressIn| {
            let address = i.roce_address_mut();
            address.set_source_l3_address(0, 0xfd);
            address.set_source_mac_31_0(1);
            address.set_roce_version(2);
            address.set_roce_l3_type(1).unwrap();
            edit(i);
        })
    };
    set(&|_| ()).ok();
    set(&|i| i.set_roce_address_index(255)).ok();
    let bad = CommandStatus::BAD_PARAM;
    assert_eq!(
        set(&|i| i.set_roce_address_index(256)).refused().0,
        CommandStatus::BAD_INDEX
    );
    assert_eq!(
        set(&|i| i.roce_address_mut().set_roce_version(3)).refused().0,
        bad
    );
    assert_eq!(
        set(&|i| i.roce_address_mut().set_roce_l3_type(0).unwrap())
            .refused()
            .0,
        bad
    );
    assert_eq!(
        set(&|i| i.roce_address_mut().set_source_mac_47_32(0x100))
            .refused()
            .0,
        bad
    );
    assert_eq!(
        set(&|i| i.roce_address_mut().set_vlan_id(5).unwrap()).refused().0,
        bad
    );
    set(&|i| {
        i.roce_address_mut().set_vlan_valid(true);
        i.roce_address_mut().set_vlan_id(100).unwrap();
    })
    .ok();
    bench
        .command(Opcode::SET_ROCE_ADDRESS, |i: &mut SetRoceAddressIn| {
            i.roce_address_mut().set_roce_version(2)
        })
        .ok();
    assert!(bench.plane.gids[0].is_none());
}

#[test]
fn the_vport_takes_what_is_selected() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench
        .command(
            Opcode::MODIFY_NIC_VPORT_CONTEXT,
            |i: &mut ModifyNicVportContextIn| {
                i.field_select_mut().set_roce_en(true);
                i.nic_vport_context_mut().set_roce_en(true);
                i.nic_vport_context_mut().set_mtu(9000);
            },
        )
        .ok();
    assert!(bench.plane.roce);
    let query: QueryNicVportContextIn = input_of(Opcode::QUERY_NIC_VPORT_CONTEXT, 0, |_| {});
    let out = bench.exec(query.as_bytes(), 0x110).ok();
    assert_eq!((out[0x13], &out[0x36..0x38]), (1, &1522u16.to_be_bytes()[..]));
    let mut list = input_of(
        Opcode::MODIFY_NIC_VPORT_CONTEXT,
        0,
        |i: &mut ModifyNicVportContextIn| {
            i.field_select_mut().set_addresses_list(true);
            i.nic_vport_context_mut().set_allowed_list_size(2).unwrap();
        },
    )
    .as_bytes()
    .to_vec();
    assert_eq!(bench.exec(&list, 16).refused().0, CommandStatus::BAD_INP_LEN);
    list.extend_from_slice(&[5; 16]);
    bench.exec(&list, 16).ok();
    let out = bench.exec(query.as_bytes(), 0x120).ok();
    assert_eq!(out[0x110..], [5; 16]);
}

#[test]
fn shared_receive_queues_come_in_three_commands() {
    let mut bench = Bench::initialized(Profile::connectx4());
    let pd = number(&bench.plain(Opcode::ALLOC_PD, 0).ok());
    let srq = bench.command(Opcode::CREATE_SRQ, |i: &mut CreateSrqIn| {
        i.srq_context_entry_mut().set_pd(pd).unwrap();
        i.srq_context_entry_mut().set_log_srq_size(4).unwrap();
    });
    let xrc = bench.command(Opcode::CREATE_XRC_SRQ, |i: &mut CreateXrcSrqIn| {
        i.xrc_srq_context_entry_mut().set_pd(pd).unwrap();
        i.xrc_srq_context_entry_mut()
            .set_db_record_addr_l(0x1000 >> 2)
            .unwrap();
    });
    let rmp = |stride| {
        input_of(Opcode::CREATE_RMP, 0, |i: &mut CreateRmpIn| {
            i.ctx_mut().set_state(1).unwrap();
            let wq = i.ctx_mut().wq_mut();
            wq.set_pd(pd).unwrap();
            wq.set_log_wq_stride(stride).unwrap();
            wq.set_log_wq_sz(5).unwrap();
        })
    };
    let (srqn, xrcn) = (number(&srq.ok()), number(&xrc.ok()));
    let rmpn = number(&bench.exec(rmp(6).as_bytes(), 16).ok());
    assert_eq!(
        bench.exec(rmp(3).as_bytes(), 16).refused().0,
        CommandStatus::BAD_PARAM
    );
    bench
        .command(Opcode::MODIFY_RMP, |i: &mut ModifyRmpIn| {
            i.set_rmpn(rmpn).unwrap();
            i.bitmask_mut().set_lwm(true);
            i.ctx_mut().wq_mut().set_lwm(9);
        })
        .ok();
    let query = input_of(Opcode::QUERY_RMP, 0, |i: &mut QueryRmpIn| {
        i.set_rmpn(rmpn).unwrap()
    });
    let out = bench.exec(query.as_bytes(), 0x110).ok();
    assert_eq!((out[0x20 + 0x30 + 7], out[0x20 + 0x30 + 0x23]), (9, 5));
    for (opcode, number) in [
        (Opcode::DESTROY_SRQ, srqn),
        (Opcode::DESTROY_XRC_SRQ, xrcn),
        (Opcode::DESTROY_RMP, rmpn),
    ] {
        bench
            .command(opcode, |i: &mut DestroySrqIn| i.set_srqn(number).unwrap())
            .ok();
    }
    bench
        .command(Opcode::DEALLOC_PD, |i: &mut DeallocPdIn| i.set_pd(pd).unwrap())
        .ok();
}

#[test]
fn no_more_objects_than_the_capabilities_that_are_on() {
    let mut profile = Profile::connectx4();
    profile
        .capabilities
        .edit(crate::profile::CapType::GENERAL, |c: &mut CmdHcaCap| {
            c.set_log_max_pd(2).unwrap();
        });
    let mut bench = Bench::initialized(profile);
    let pds: Vec<u32> = (0..4)
        .map(|_| number(&bench.plain(Opcode::ALLOC_PD, 0).ok()))
        .collect();
    let refused = bench.plain(Opcode::ALLOC_PD, 0).refused();
    assert_eq!(refused, (CommandStatus::EXCEED_LIM, syndrome::ABOVE_LIMIT));
    bench
        .command(Opcode::DEALLOC_PD, |i: &mut DeallocPdIn| {
            i.set_pd(pds[2]).unwrap()
        })
        .ok();
    bench.plain(Opcode::ALLOC_PD, 0).ok();
}
