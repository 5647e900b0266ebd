from optfuse.runtime.environment import prepare

prepare()
